"""The data room: named data sets, the embedded one, the epoch order, views and loading.

It turns ids into pixels on a device, the same in every process, and must not know about models, selection or
sockets.
"""

from sbpipe.data.order import Order
from sbpipe.data.split import Batch, Data, Split, load_data

__all__ = ["Batch", "Data", "Order", "Split", "load_data"]
