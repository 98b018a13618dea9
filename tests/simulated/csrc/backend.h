// What torch is told about the devices: memory, streams, events, generators.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "core.h"

namespace sim {

void check_usable();  // raises in a process that was forked from one that used a device
int current_device();
int current_slot(int device);
c10::Allocator* device_allocator();
c10::DataPtr device_data(void* shadow, int device);
at::Generator inner_generator(const at::Generator& outer);
at::Generator inner_default(int device);

// While it stands, memory that CPU kernels ask for in this thread is memory of the device.
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();

 private:
  int before_;
};

}  // namespace sim
