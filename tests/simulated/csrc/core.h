// What the simulated devices remember: memory, order of work, clocks, waits. Knows nothing of torch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sim {

constexpr int kDevices = 2;
constexpr int kStreams = 32;  // of each device; number 0 is the default one
constexpr int kSlots = kDevices * kStreams;
constexpr unsigned char kPoison = 0xFF;  // a NaN in every floating type, -1 in the integers

// How far each stream has come, as far as someone knows.
using Clock = std::array<uint64_t, kSlots>;

inline int slot_of(int device, int stream) { return device * kStreams + stream; }
inline int device_of(int slot) { return slot / kStreams; }

enum class Engine { Compute, ToDevice, ToHost };

struct Range {
  const void* storage;  // as tensors show it
  uint64_t low, high;   // bytes inside the storage
  bool is_written;
};

struct Mark {  // where an event was recorded
  int slot = -1;
  uint64_t number = 0;
  Clock clock{};
  int64_t end_ns = 0;
};

int64_t now_ns();
int64_t thread_ns();  // CPU time of this thread

// --- memory -----------------------------------------------------------------------------------------
void* allocate(int device, int slot, size_t size);  // the address that kernels use; nullptr: out of memory
void release(void* shadow);
bool is_shadow(const void* address);
void* shadow_of(const void* front);
void* front_of(const void* shadow);
int device_at(const void* front);  // -1: no device memory
void note_use(const void* front, int slot);  // record_stream
void empty_cache();
struct Memory { uint64_t now, peak, reserved, total; };
Memory memory_of(int device);
void reset_peak(int device);

void* allocate_pinned(size_t size);
void release_pinned(void* address);
bool is_pinned(const void* address);

// --- work -------------------------------------------------------------------------------------------
// A kernel that the host began to compute at `begin_ns` and whose work is done as far as values go.
// `kind`: kernels of one kind cost the same where costs are kept. `count`: so many kernels in truth, one behind the other.
void launch(int slot, const char* op, uint64_t kind, const std::vector<Range>& ranges, int64_t begin_ns, int64_t cpu_ns,
            int64_t count = 1);
void launch_copy(int slot, int other, Engine engine, const std::vector<Range>& ranges, size_t bytes);
// The same, late: `host` gets `data` when the copy is known to be done; or is read then, and must be unchanged.
void launch_to_host(int slot, const std::vector<Range>& ranges, void* host, const void* data, size_t bytes);
void launch_to_device(int slot, const std::vector<Range>& ranges, const void* host, size_t bytes);
void before_host_source(int slot, const void* host, size_t bytes);  // what is still on its way into it

void sleep(int slot, int64_t ns);  // nothing is computed, and the device is not busy

Mark record(int slot);
void make_wait(int slot, const Mark& mark);
bool is_done(const Mark& mark);
bool is_done(int slot);

// --- host waits -------------------------------------------------------------------------------------
void wait_for(const Mark& mark, const char* kind);
void wait_for(int slot, const char* kind);
void wait_for_device(int device, const char* kind);

void touch(int device);  // a context is made
bool is_touched(int device);
bool is_forked();

}  // namespace sim
