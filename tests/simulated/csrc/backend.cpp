#include "backend.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <mutex>

namespace sim {
namespace {

constexpr auto kSim = c10::DeviceType::PrivateUse1;

thread_local int t_device = 0;
thread_local int t_streams[kDevices] = {0, 0};
thread_local int t_on_device = -1;

c10::Allocator* g_cpu = nullptr;  // torch's own
c10::DeleterFnPtr g_cpu_delete = nullptr;

void give_back(void* address) {
  if (is_shadow(address)) release(address);
  else g_cpu_delete(address);
}

void* allocate_or_raise(int device, size_t size) {
  check_usable();
  void* shadow = allocate(device, current_slot(device), size);
  if (shadow == nullptr && size > 0) {
    Memory memory = memory_of(device);
    TORCH_CHECK_WITH(OutOfMemoryError, false, "sim:", device, " out of memory. Tried to allocate ", size, " bytes; ",
                     memory.now, " of ", memory.total, " are in use");
  }
  return shadow;
}

// Stands in front of torch's allocator for the CPU: what a kernel makes lies on the device from the beginning.
struct CpuAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    if (t_on_device >= 0 && size > 0) {
      void* shadow = allocate_or_raise(t_on_device, size);
      return {shadow, shadow, &give_back, c10::Device(c10::DeviceType::CPU)};
    }
    c10::DataPtr data = g_cpu->allocate(size);
    void* address = data.get();
    data.release_context();
    return {address, address, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
};

struct DeviceMemory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t size) override {
    void* shadow = allocate_or_raise(t_device, size);
    if (size > 0) memset(shadow, kPoison, size);
    return device_data(shadow, t_device);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t count) const override {
    memcpy(shadow_of(to), shadow_of(from), count);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t = {0, 0}) override { empty_cache(); }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    note_use(data.get(), slot_of(stream.device_index(), int(stream.id())));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    Memory memory = memory_of(device);
    auto& allocated = stats.allocated_bytes[0];
    auto& reserved = stats.reserved_bytes[0];
    allocated.current = int64_t(memory.now);
    allocated.peak = int64_t(memory.peak);
    reserved.current = reserved.peak = int64_t(memory.reserved);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override { reset_peak(device); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    Memory memory = memory_of(device);
    return {memory.total - memory.now, memory.total};
  }
};

struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    check_usable();
    touch(t_device);
    void* address = allocate_pinned(size);
    TORCH_CHECK(address != nullptr, "sim: no pinned memory left");
    return {address, address, &release_pinned, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
};

DeviceMemory g_device_memory;
PinnedMemory g_pinned_memory;
CpuAllocator g_cpu_allocator;

// --- generators -------------------------------------------------------------------------------------

struct DeviceGenerator final : c10::GeneratorImpl {
  explicit DeviceGenerator(c10::DeviceIndex device)
      : c10::GeneratorImpl(c10::Device(kSim, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        inner(at::detail::createCPUGenerator()) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "sim: generators have no offset"); }
  uint64_t get_offset() const override { TORCH_CHECK(false, "sim: generators have no offset"); }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner.unsafeGetGeneratorImpl()->get_state();
  }
  DeviceGenerator* clone_impl() const override {
    auto* copy = new DeviceGenerator(device().index());
    copy->inner = inner.clone();
    return copy;
  }
  at::Generator inner;
};

const at::Generator& default_generator(int device) {
  static auto* all = new std::array<at::Generator, kDevices>{
      at::make_generator<DeviceGenerator>(c10::DeviceIndex(0)), at::make_generator<DeviceGenerator>(c10::DeviceIndex(1))};
  TORCH_CHECK(device < kDevices, "sim: there is no device ", device);
  return (*all)[size_t(device < 0 ? t_device : device)];
}

// --- streams and events -----------------------------------------------------------------------------

struct Event {
  Mark mark;
  bool has_timing = false;
};

void check_device(int device) {
  TORCH_CHECK(device >= 0 && device < kDevices, "sim: there is no device ", device, "; there are ", kDevices);
}

c10::Stream stream_of(int device, int number) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSim, c10::DeviceIndex(device)), number);
}

int slot_of(const c10::Stream& stream) { return sim::slot_of(stream.device_index(), int(stream.id())); }
const Event& event_at(void* event) { return *static_cast<Event*>(event); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kSim; }
  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device before(kSim, c10::DeviceIndex(t_device));
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kSim, c10::DeviceIndex(t_device)}; }
  void setDevice(c10::Device device) const override {
    if (!device.has_index()) return;
    check_device(device.index());
    t_device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index() && device.index() < kDevices) t_device = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    int index = device.has_index() ? device.index() : t_device;
    check_device(index);
    return stream_of(index, t_streams[index]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(device.has_index() ? device.index() : t_device, 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool = false) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    check_usable();
    static std::atomic<int> next[kDevices];
    int index = device.has_index() ? device.index() : t_device;
    check_device(index);
    touch(index);
    return stream_of(index, 1 + next[index]++ % (kStreams - 1));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    int device = stream.device_index();
    c10::Stream before = stream_of(device, t_streams[device]);
    t_streams[device] = int(stream.id());
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(intptr_t(slot_of(stream)));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag flag) const override {
    check_usable();
    TORCH_CHECK(device == -1 || device == stream.device_index(), "sim: an event of device ", int(device),
                " cannot be recorded on a stream of device ", int(stream.device_index()));
    touch(stream.device_index());
    if (*event == nullptr) *event = new Event{{}, flag == c10::EventFlag::BACKEND_DEFAULT};
    static_cast<Event*>(*event)->mark = sim::record(slot_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr && event_at(event).mark.slot >= 0) make_wait(slot_of(stream), event_at(event).mark);
  }
  // Asking makes a context too, on the device that is current: of a thread that never said so, the first.
  bool queryEvent(void* event) const override {
    touch(t_device);
    return event == nullptr || event_at(event).mark.slot < 0 || is_done(event_at(event).mark);
  }
  c10::DeviceIndex deviceCount() const noexcept override { return is_forked() ? 0 : kDevices; }
  bool queryStream(const c10::Stream& stream) const override { return is_done(slot_of(stream)); }
  void synchronizeStream(const c10::Stream& stream) const override { wait_for(slot_of(stream), "stream"); }
  void synchronizeEvent(void* event) const override {
    touch(t_device);
    if (event != nullptr) wait_for(event_at(event).mark, "event");
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    check_device(device);
    wait_for_device(device, "device");
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    note_use(data.get(), slot_of(stream));
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    TORCH_CHECK(first != nullptr && second != nullptr, "sim: both events must be recorded");
    TORCH_CHECK(event_at(first).has_timing && event_at(second).has_timing, "sim: both events need enable_timing=True");
    TORCH_CHECK(is_done(event_at(first).mark) && is_done(event_at(second).mark), "sim: both events must be completed");
    return double(event_at(second).mark.end_ns - event_at(first).mark.end_ns) * 1e-6;
  }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }
};

// --- hooks ------------------------------------------------------------------------------------------

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override { return is_touched(device < 0 ? t_device : device); }
  void init() const override { check_usable(); }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    check_device(device);
    t_device = device;
  }
  c10::DeviceIndex getCurrentDevice() const override { return c10::DeviceIndex(t_device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    auto before = c10::DeviceIndex(t_device);
    setCurrentDevice(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 || device >= kDevices ? c10::DeviceIndex(t_device) : exchangeDevice(device);
  }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &g_pinned_memory; }
  c10::Device getDeviceFromPtr(void* address) const override {
    int device = device_at(address);
    TORCH_CHECK(device >= 0, "sim: this is no memory of a device");
    return {kSim, c10::DeviceIndex(device)};
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<DeviceGenerator>(device < 0 ? c10::DeviceIndex(t_device) : device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    int device = storage.device().index();
    void* shadow = allocate_or_raise(device, size);
    if (size > 0) memset(shadow, kPoison, size);
    if (size > 0 && storage.nbytes() > 0) memcpy(shadow, shadow_of(storage.data()), std::min(size, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr(device_data(shadow, device));
    storage.unsafeGetStorageImpl()->set_nbytes(size);
  }
};

}  // namespace

void check_usable() {
  TORCH_CHECK(!is_forked(),
              "Cannot re-initialize sim in forked subprocess. To use sim with multiprocessing, you must use the "
              "'spawn' start method");
}

int current_device() { return t_device; }
int current_slot(int device) { return sim::slot_of(device, t_streams[device]); }
c10::Allocator* device_allocator() { return &g_device_memory; }

c10::DataPtr device_data(void* shadow, int device) {
  c10::Device at(kSim, c10::DeviceIndex(device));
  if (shadow == nullptr) return {nullptr, at};
  return {front_of(shadow), shadow, &release, at};
}

at::Generator inner_generator(const at::Generator& outer) {
  return outer.device().type() == kSim ? static_cast<DeviceGenerator*>(outer.unsafeGetGeneratorImpl())->inner : outer;
}
at::Generator inner_default(int device) { return inner_generator(default_generator(device)); }

OnDevice::OnDevice(int device) : before_(t_on_device) { t_on_device = device; }
OnDevice::~OnDevice() { t_on_device = before_; }

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace sim

extern "C" {

void sim_register() {
  sim::g_cpu = c10::GetCPUAllocator();
  sim::g_cpu_delete = sim::g_cpu->raw_deleter();
  c10::SetCPUAllocator(&sim::g_cpu_allocator, 1);
  c10::SetAllocator(sim::kSim, &sim::g_device_memory);
  at::RegisterPrivateUse1HooksInterface(new sim::Hooks);
}

void sim_sleep(int device, int64_t ns) {
  sim::touch(device);
  sim::sleep(sim::current_slot(device), ns);
}

void sim_seed(int device, uint64_t seed) {
  auto generator = sim::inner_default(device);
  std::lock_guard<std::mutex> guard(generator.mutex());
  generator.set_current_seed(seed);
}
uint64_t sim_initial_seed(int device) { return sim::inner_default(device).current_seed(); }
}
