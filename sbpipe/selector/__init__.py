"""The selector: a replica of the weights and a history of scores. Disposable: nothing in it must survive."""
