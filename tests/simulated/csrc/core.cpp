#include "core.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>
#include <unordered_map>

namespace sim {
namespace {

constexpr size_t kSpace = size_t(32) << 30;  // addresses of one device, and of pinned memory
constexpr size_t kGrain = 512;
constexpr int kSights = 4;  // of a kind of kernel, until its cost is kept: the first ones also fill caches

struct Access {
  uint64_t low, high, number;
  int slot;
  bool is_written;
  uint32_t generation, site;
  const char* op;
};

struct Block {
  char* shadow;
  size_t size;
  int device, slot;
  uint32_t generation = 0;
  bool is_free = false;
  std::vector<Access> accesses;
  std::vector<int> other_slots;  // streams named by record_stream
  std::vector<Mark> pending;     // their work when it was freed
};

struct Stream {
  uint64_t number = 0;  // of its last piece of work
  Clock clock{};
  int64_t end_ns = 0;
};

struct Cost {
  int64_t ns = INT64_MAX;
  int sights = 0;
};

struct Device {
  char* front = nullptr;  // reserved, and not accessible
  char* shadow = nullptr;
  size_t used = 0, limit = size_t(8) << 30;
  Memory memory{};
  double slowness = 1.0;
  int64_t fixed_ns = -1;
  bool keeps_costs = false;
  std::unordered_map<uint64_t, Cost> costs;  // by kind of kernel
  int64_t free_ns[3] = {0, 0, 0};
  int64_t busy_ns[3] = {0, 0, 0};
  int64_t begin_ns = 0;
  uint64_t launches = 0;
  int64_t slept_ns = 0;
  bool is_touched = false;
};

struct PinnedBlock {
  size_t size;
  int uses = 0;  // copies that are not known to be done
  bool is_free = false;
};

struct Late {  // a copy between pinned memory and a device that the host does not know to be done
  Mark mark;
  char* host;
  size_t bytes;
  std::vector<char> data;  // to the host
  uint64_t hash = 0;       // to the device
  std::vector<Range> ranges;
  uint32_t site;
};

struct WaitCount {
  uint64_t count = 0, drains = 0, newer = 0;
  int64_t blocked_ns = 0;
};

struct Race {
  std::string kind, first, second;
  uint32_t first_site, second_site;
  int first_slot, second_slot;
  uint64_t count;
};

struct State {
  std::mutex lock;
  Device devices[kDevices];
  Stream streams[kSlots];
  Clock host{};  // what any thread of the host knows to be done
  Clock marked{};  // how far each stream had been queued when the last marker was set
  bool has_marker = false;
  std::unordered_map<const void*, Block*> blocks;                     // by shadow
  std::map<std::pair<int, size_t>, std::vector<Block*>> free_blocks;  // by stream and size
  char* pinned = nullptr;
  size_t pinned_used = 0;
  std::map<char*, PinnedBlock> pinned_blocks;
  std::map<size_t, std::vector<char*>> free_pinned;
  std::deque<Late> late;
  std::map<std::tuple<uint32_t, std::string, int>, WaitCount> waits;
  std::vector<Race> races;
  double latency_s = 10e-6, bytes_per_s = 12e9;
  bool traces = false;
  bool is_forked = false;
};

State& state() {
  static State* it = new State;  // never destroyed: tensors may outlive everything
  return *it;
}

using SiteOf = uint32_t (*)();
SiteOf g_site = nullptr;

uint32_t site() { return g_site == nullptr || state().is_forked ? 0 : g_site(); }
uint32_t site_if_traced() { return state().traces ? site() : 0; }

void* reserve(size_t size, int protection) {
  void* at = mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    fprintf(stderr, "sim: no address space for the simulated devices\n");
    abort();
  }
  return at;
}

size_t rounded(size_t size) {
  size = std::max(kGrain, (size + kGrain - 1) / kGrain * kGrain);
  size_t step = kGrain;
  while (step * 8 < size) step *= 2;  // at most an eighth is wasted, and there are few sizes
  return (size + step - 1) / step * step;
}

void join(Clock& clock, const Clock& other) {
  for (int k = 0; k < kSlots; ++k) clock[k] = std::max(clock[k], other[k]);
}

uint64_t hash_of(const char* bytes, size_t size) {
  uint64_t hash = 1469598103934665603ull;
  size_t k = 0;
  for (; k + 8 <= size; k += 8) {
    uint64_t word;
    memcpy(&word, bytes + k, 8);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 29;
  }
  for (; k < size; ++k) hash = (hash ^ static_cast<unsigned char>(bytes[k])) * 1099511628211ull;
  return hash;
}

void report(const char* kind, const char* first, uint32_t first_site, int first_slot, const char* second,
            uint32_t second_site, int second_slot) {
  for (Race& race : state().races)
    if (race.kind == kind && race.first == first && race.second == second && race.first_site == first_site &&
        race.second_site == second_site && race.first_slot == first_slot && race.second_slot == second_slot) {
      ++race.count;
      return;
    }
  if (state().races.size() < 200)
    state().races.push_back({kind, first, second, first_site, second_site, first_slot, second_slot, 1});
}

Block* block_at(const void* front) {
  if (front == nullptr) return nullptr;
  auto found = state().blocks.find(shadow_of(front));
  return found == state().blocks.end() ? nullptr : found->second;
}

// Compare a piece of work with those before it on the same memory, and remember it there.
void check(const Range& range, int slot, const Clock& clock, uint64_t number, const char* op, uint32_t where) {
  Block* block = block_at(range.storage);
  if (block == nullptr || range.low >= range.high) return;
  auto& known = block->accesses;
  for (const Access& before : known) {
    bool overlaps = before.low < range.high && range.low < before.high;
    bool conflicts = before.is_written || range.is_written;
    if (overlaps && conflicts && before.slot != slot && clock[before.slot] < before.number)
      report(before.generation == block->generation ? "race" : "reused memory", before.op, before.site,
             before.slot, op, where, slot);
  }
  Access now{range.low, range.high, number, slot, range.is_written, block->generation, where, op};
  // What this work comes after, and covers, can conflict with nothing that does not conflict with this.
  known.erase(std::remove_if(known.begin(), known.end(),
                             [&](const Access& before) {
                               bool is_inside = range.low <= before.low && before.high <= range.high;
                               bool is_before = before.slot == slot || clock[before.slot] >= before.number;
                               return is_inside && is_before && (range.is_written || !before.is_written) &&
                                      (range.is_written || before.slot == slot);
                             }),
              known.end());
  if (known.size() > 256) {
    const Clock& done = state().host;
    known.erase(std::remove_if(known.begin(), known.end(),
                               [&](const Access& before) { return done[before.slot] >= before.number; }),
                known.end());
  }
  known.push_back(now);
}

// Put work at the end of a stream: its place in the order, and its time on the device's clock.
Mark enqueue(int slot, Engine engine, int64_t begin_ns, int64_t cost_ns) {
  Stream& stream = state().streams[slot];
  Device& device = state().devices[device_of(slot)];
  join(stream.clock, state().host);
  stream.clock[slot] = ++stream.number;
  int64_t& free_ns = device.free_ns[int(engine)];
  int64_t start = std::max({begin_ns, stream.end_ns, free_ns});
  stream.end_ns = free_ns = start + cost_ns;
  device.busy_ns[int(engine)] += cost_ns;
  ++device.launches;
  return {slot, stream.number, stream.clock, stream.end_ns};
}

std::map<char*, PinnedBlock>::iterator pinned_at(const void* address) {
  auto& blocks = state().pinned_blocks;
  auto after = blocks.upper_bound(const_cast<char*>(static_cast<const char*>(address)));
  return after == blocks.begin() ? blocks.end() : std::prev(after);
}

void deliver(Late& late) {
  if (!late.data.empty()) {
    memcpy(late.host, late.data.data(), late.bytes);
  } else if (hash_of(late.host, late.bytes) != late.hash) {
    report("overwritten in flight", "copy to the device", late.site, late.mark.slot, "the host", 0, late.mark.slot);
    for (const Range& range : late.ranges) {  // as a real copy would have: not what was meant
      Block* block = block_at(range.storage);
      if (block != nullptr && range.is_written)
        memset(block->shadow + range.low, kPoison, range.high - range.low);
    }
  }
  auto block = pinned_at(late.host);
  if (block == state().pinned_blocks.end()) return;
  if (--block->second.uses == 0 && block->second.is_free)
    state().free_pinned[block->second.size].push_back(block->first);
}

template <class Which>
void deliver_if(Which which) {
  std::deque<Late> left;
  for (Late& late : state().late) {
    if (which(late)) deliver(late);
    else left.push_back(std::move(late));
  }
  state().late.swap(left);
}

// The host knows that all of this is done.
void observe(const Clock& clock) {
  join(state().host, clock);
  const Clock& host = state().host;
  deliver_if([&](const Late& late) { return host[late.mark.slot] >= late.mark.number; });
}

void sleep_until(int64_t end_ns) {
  timespec at{time_t(end_ns / 1000000000), long(end_ns % 1000000000)};
  if (end_ns - now_ns() < 30000)  // on a busy machine a thread that sleeps may get its core back much later
    while (now_ns() < end_ns) {}
  while (now_ns() < end_ns) clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr);
}

// Whether any of it was queued after the marker, whatever was queued behind it since.
bool is_newer(const Mark& mark) {
  bool found = false;
  for (int k = 0; k < kSlots; ++k) found |= mark.clock[k] > state().marked[k];
  return found && state().has_marker;
}

// `is_drain`: nothing was queued behind what is waited for, so the device runs dry.
void wait_until(const Mark& mark, bool is_drain, const char* kind) {
  uint32_t where = site();
  int64_t begin = now_ns();
  sleep_until(mark.end_ns);
  std::lock_guard<std::mutex> guard(state().lock);
  observe(mark.clock);
  WaitCount& count = state().waits[{where, kind, device_of(mark.slot)}];
  ++count.count;
  count.drains += is_drain;
  count.newer += is_newer(mark);
  count.blocked_ns += std::max<int64_t>(0, now_ns() - begin);
}

int64_t copy_ns(size_t bytes) {
  return int64_t((state().latency_s + double(bytes) / state().bytes_per_s) * 1e9);
}

void drop_completed(Block* block) {
  auto& accesses = block->accesses;
  for (const Mark& mark : block->pending)
    accesses.erase(std::remove_if(accesses.begin(), accesses.end(),
                                  [&](const Access& a) { return a.slot == mark.slot && a.number <= mark.number; }),
                   accesses.end());
  block->pending.clear();
}

bool is_reusable(const Block* block) {
  return std::all_of(block->pending.begin(), block->pending.end(),
                     [](const Mark& mark) { return mark.end_ns <= now_ns(); });
}

struct sigaction g_before;

void on_fault(int, siginfo_t* info, void*) {
  int device = device_at(info->si_addr);
  if (device >= 0) {
    char text[] = "sim: the host touched memory of sim:0, which only kernels may touch\n";
    text[sizeof("sim: the host touched memory of sim:") - 1] = char('0' + device);
    if (write(2, text, sizeof(text) - 1) < 0) _exit(139);
  }
  sigaction(SIGSEGV, &g_before, nullptr);  // the access is repeated, and ends in what was installed before
}

void after_fork() { state().is_forked = state().pinned != nullptr; }

void begin_once() {  // under the lock
  State& all = state();
  if (all.pinned != nullptr) return;
  for (Device& device : all.devices) {
    device.front = static_cast<char*>(reserve(kSpace, PROT_NONE));
    device.shadow = static_cast<char*>(reserve(kSpace, PROT_READ | PROT_WRITE));
    device.begin_ns = now_ns();
  }
  all.pinned = static_cast<char*>(reserve(kSpace, PROT_READ | PROT_WRITE));
}

}  // namespace

int64_t now_ns() {
  timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return int64_t(at.tv_sec) * 1000000000 + at.tv_nsec;
}

int64_t thread_ns() {
  timespec at;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
  return int64_t(at.tv_sec) * 1000000000 + at.tv_nsec;
}

// --- memory -----------------------------------------------------------------------------------------

void* allocate(int index, int slot, size_t size) {
  if (size == 0) return nullptr;
  State& all = state();
  std::lock_guard<std::mutex> guard(all.lock);
  begin_once();
  Device& device = all.devices[index];
  device.is_touched = true;
  size = rounded(size);
  if (device.memory.now + size > device.limit) return nullptr;
  auto& free_blocks = all.free_blocks[{slot, size}];
  Block* block = nullptr;
  for (size_t k = free_blocks.size(); k-- > 0;)  // the last one freed: what is wrong with it shows at once
    if (is_reusable(free_blocks[k])) {
      block = free_blocks[k];
      free_blocks.erase(free_blocks.begin() + long(k));
      drop_completed(block);
      break;
    }
  if (block == nullptr) {
    if (device.used + size > kSpace) return nullptr;
    block = new Block{device.shadow + device.used, size, index, slot, 0, false, {}, {}, {}};
    device.used += size;
    device.memory.reserved += size;
    all.blocks[block->shadow] = block;
  }
  block->is_free = false;
  ++block->generation;
  device.memory.now += size;
  device.memory.peak = std::max(device.memory.peak, device.memory.now);
  return block->shadow;
}

void release(void* shadow) {
  State& all = state();
  if (all.is_forked) return;
  std::lock_guard<std::mutex> guard(all.lock);
  auto found = all.blocks.find(shadow);
  if (found == all.blocks.end() || found->second->is_free) return;
  Block* block = found->second;
  block->is_free = true;
  for (int slot : block->other_slots) {
    const Stream& stream = all.streams[slot];
    block->pending.push_back({slot, stream.number, stream.clock, stream.end_ns});
  }
  block->other_slots.clear();
  all.devices[block->device].memory.now -= block->size;
  all.free_blocks[{block->slot, block->size}].push_back(block);
}

bool is_shadow(const void* address) {
  for (const Device& device : state().devices)
    if (device.shadow != nullptr && address >= device.shadow && address < device.shadow + kSpace) return true;
  return false;
}

int device_at(const void* front) {
  for (int k = 0; k < kDevices; ++k) {
    const char* begin = state().devices[k].front;
    if (begin != nullptr && front >= begin && front < begin + kSpace) return k;
  }
  return -1;
}

void* shadow_of(const void* front) {
  int k = device_at(front);
  if (k < 0) return nullptr;
  const Device& device = state().devices[k];
  return device.shadow + (static_cast<const char*>(front) - device.front);
}

void* front_of(const void* shadow) {
  for (const Device& device : state().devices)
    if (device.shadow != nullptr && shadow >= device.shadow && shadow < device.shadow + kSpace)
      return device.front + (static_cast<const char*>(shadow) - device.shadow);
  return nullptr;
}

void note_use(const void* front, int slot) {
  std::lock_guard<std::mutex> guard(state().lock);
  Block* block = block_at(front);
  if (block == nullptr || block->slot == slot) return;
  auto& slots = block->other_slots;
  if (std::find(slots.begin(), slots.end(), slot) == slots.end()) slots.push_back(slot);
}

void empty_cache() {
  std::lock_guard<std::mutex> guard(state().lock);
  for (auto& [key, blocks] : state().free_blocks)
    for (Block* block : blocks)
      if (block->size >= 4096) {
        auto begin = (reinterpret_cast<uintptr_t>(block->shadow) + 4095) & ~uintptr_t(4095);
        auto end = reinterpret_cast<uintptr_t>(block->shadow + block->size) & ~uintptr_t(4095);
        if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
      }
}

Memory memory_of(int index) {
  std::lock_guard<std::mutex> guard(state().lock);
  Memory memory = state().devices[index].memory;
  memory.total = state().devices[index].limit;
  return memory;
}

void reset_peak(int index) {
  std::lock_guard<std::mutex> guard(state().lock);
  Memory& memory = state().devices[index].memory;
  memory.peak = memory.now;
}

void* allocate_pinned(size_t size) {
  State& all = state();
  std::lock_guard<std::mutex> guard(all.lock);
  begin_once();
  size = rounded(std::max<size_t>(size, 1));
  auto& free_blocks = all.free_pinned[size];
  if (free_blocks.empty()) {  // ask again of those whose copies were not done
    int64_t now = now_ns();
    deliver_if([&](const Late& late) { return late.mark.end_ns <= now && pinned_at(late.host)->second.is_free; });
  }
  char* address;
  if (!free_blocks.empty()) {
    address = free_blocks.back();
    free_blocks.pop_back();
  } else {
    if (all.pinned_used + size > kSpace) return nullptr;
    address = all.pinned + all.pinned_used;
    all.pinned_used += size;
  }
  all.pinned_blocks[address] = {size};
  memset(address, kPoison, size);
  return address;
}

void release_pinned(void* address) {
  State& all = state();
  if (all.is_forked) return;
  std::lock_guard<std::mutex> guard(all.lock);
  auto found = all.pinned_blocks.find(static_cast<char*>(address));
  if (found == all.pinned_blocks.end() || found->second.is_free) return;
  found->second.is_free = true;
  if (found->second.uses == 0) all.free_pinned[found->second.size].push_back(found->first);
}

bool is_pinned(const void* address) {
  const char* begin = state().pinned;
  return begin != nullptr && address >= begin && address < begin + kSpace;
}

// --- work -------------------------------------------------------------------------------------------

namespace {
// What a kernel takes, before the device's slowness: least of what its kind took at first sight, where that is kept.
int64_t cost_of(Device& device, uint64_t kind, int64_t cpu_ns, int64_t count) {
  if (device.fixed_ns >= 0) return device.fixed_ns * count;
  if (!device.keeps_costs) return cpu_ns;
  Cost& cost = device.costs[kind];
  if (cost.sights < kSights) {
    ++cost.sights;
    cost.ns = std::min(cost.ns, cpu_ns);
  }
  return cost.ns;
}
}  // namespace

void launch(int slot, const char* op, uint64_t kind, const std::vector<Range>& ranges, int64_t begin_ns, int64_t cpu_ns,
            int64_t count) {
  uint32_t where = site_if_traced();
  State& all = state();
  std::unique_lock<std::mutex> guard(all.lock);
  Device& device = all.devices[device_of(slot)];
  int64_t cost = int64_t(double(cost_of(device, kind, cpu_ns, count)) * device.slowness);
  device.launches += uint64_t(count - 1);
  Mark mark = enqueue(slot, Engine::Compute, begin_ns, cost);
  for (const Range& range : ranges) check(range, slot, mark.clock, mark.number, op, where);
}

namespace {
Mark put_copy(int slot, int other, Engine engine, const std::vector<Range>& ranges, size_t bytes, uint32_t where) {
  State& all = state();
  if (other >= 0) {  // between devices: after all that either of them has queued
    join(all.streams[slot].clock, all.streams[other].clock);
    all.streams[slot].end_ns = std::max(all.streams[slot].end_ns, all.streams[other].end_ns);
  }
  Mark mark = enqueue(slot, engine, now_ns(), copy_ns(bytes));
  const char* op = engine == Engine::ToHost ? "copy to the host" : "copy to the device";
  for (const Range& range : ranges) check(range, slot, mark.clock, mark.number, op, where);
  if (other >= 0) {
    join(all.streams[other].clock, mark.clock);
    all.streams[other].end_ns = std::max(all.streams[other].end_ns, mark.end_ns);
  }
  return mark;
}
}  // namespace

void launch_copy(int slot, int other, Engine engine, const std::vector<Range>& ranges, size_t bytes) {
  uint32_t where = site_if_traced();
  std::lock_guard<std::mutex> guard(state().lock);
  put_copy(slot, other, engine, ranges, bytes, where);
}

void launch_to_host(int slot, const std::vector<Range>& ranges, void* host, const void* data, size_t bytes) {
  uint32_t where = site_if_traced();
  std::lock_guard<std::mutex> guard(state().lock);
  Mark mark = put_copy(slot, -1, Engine::ToHost, ranges, bytes, where);
  const char* begin = static_cast<const char*>(data);
  state().late.push_back({mark, static_cast<char*>(host), bytes, {begin, begin + bytes}, 0, {}, where});
  auto block = pinned_at(host);
  if (block != state().pinned_blocks.end()) ++block->second.uses;
  memset(host, kPoison, bytes);
}

void launch_to_device(int slot, const std::vector<Range>& ranges, const void* host, size_t bytes) {
  uint32_t where = site_if_traced();
  std::lock_guard<std::mutex> guard(state().lock);
  Mark mark = put_copy(slot, -1, Engine::ToDevice, ranges, bytes, where);
  char* begin = const_cast<char*>(static_cast<const char*>(host));
  state().late.push_back({mark, begin, bytes, {}, hash_of(begin, bytes), ranges, where});
  auto block = pinned_at(host);
  if (block != state().pinned_blocks.end()) ++block->second.uses;
}

void before_host_source(int slot, const void* host, size_t bytes) {
  const char* begin = static_cast<const char*>(host);
  std::lock_guard<std::mutex> guard(state().lock);
  const Clock& clock = state().streams[slot].clock;
  deliver_if([&](const Late& late) {
    bool overlaps = late.host < begin + bytes && begin < late.host + late.bytes;
    return overlaps && !late.data.empty() && clock[late.mark.slot] >= late.mark.number;
  });
}

Mark record(int slot) {
  std::lock_guard<std::mutex> guard(state().lock);
  const Stream& stream = state().streams[slot];
  return {slot, stream.number, stream.clock, std::max(stream.end_ns, now_ns())};
}

void sleep(int slot, int64_t ns) {
  std::lock_guard<std::mutex> guard(state().lock);
  Stream& stream = state().streams[slot];
  stream.end_ns = std::max(stream.end_ns, now_ns()) + ns;
  state().devices[device_of(slot)].slept_ns += ns;
}

void make_wait(int slot, const Mark& mark) {
  std::lock_guard<std::mutex> guard(state().lock);
  Stream& stream = state().streams[slot];
  join(stream.clock, mark.clock);
  stream.end_ns = std::max(stream.end_ns, mark.end_ns);
}

bool is_done(const Mark& mark) {
  if (now_ns() < mark.end_ns) return false;
  std::lock_guard<std::mutex> guard(state().lock);
  observe(mark.clock);
  return true;
}

bool is_done(int slot) { return is_done(record(slot)); }

// --- host waits -------------------------------------------------------------------------------------

void wait_for(const Mark& mark, const char* kind) {
  if (mark.slot < 0) return;
  bool is_drain;
  {
    std::lock_guard<std::mutex> guard(state().lock);
    is_drain = state().streams[mark.slot].number <= mark.number;
  }
  wait_until(mark, is_drain, kind);
}

void wait_for(int slot, const char* kind) { wait_until(record(slot), true, kind); }

void wait_for_device(int index, const char* kind) {
  Mark mark = record(slot_of(index, 0));
  {
    std::lock_guard<std::mutex> guard(state().lock);
    for (int k = 0; k < kStreams; ++k) {
      const Stream& stream = state().streams[slot_of(index, k)];
      join(mark.clock, stream.clock);
      mark.end_ns = std::max(mark.end_ns, stream.end_ns);
    }
  }
  wait_until(mark, true, kind);
}

void touch(int index) {
  std::lock_guard<std::mutex> guard(state().lock);
  begin_once();
  state().devices[index].is_touched = true;
}

bool is_touched(int index) { return state().devices[index].is_touched; }
bool is_forked() { return state().is_forked; }

}  // namespace sim

// --- what tests ask, through ctypes -------------------------------------------------------------------

using namespace sim;

extern "C" {

void sim_start(uint32_t (*site_of)()) {
  g_site = site_of;
  pthread_atfork(nullptr, nullptr, after_fork);
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &g_before);
}

void sim_stop() { g_site = nullptr; }
int sim_is_forked() { return is_forked(); }
void sim_trace(int is_on) { state().traces = is_on != 0; }

void sim_mark() {
  std::lock_guard<std::mutex> guard(state().lock);
  for (int k = 0; k < kSlots; ++k) state().marked[k] = state().streams[k].number;
  state().has_marker = true;
}

void sim_reset() {
  std::lock_guard<std::mutex> guard(state().lock);
  state().has_marker = false;
  for (Stream& stream : state().streams) {
    observe(stream.clock);  // what was before races with nothing after
    stream.end_ns = std::min(stream.end_ns, now_ns());
  }
  state().waits.clear();
  state().races.clear();
  for (Device& device : state().devices) {
    device.launches = 0;
    device.slept_ns = 0;
    device.begin_ns = now_ns();
    for (int64_t& busy : device.busy_ns) busy = 0;
    for (int64_t& end : device.free_ns) end = std::min(end, now_ns());
  }
}

void sim_set_slowness(int index, double factor) { state().devices[index].slowness = factor; }
void sim_set_kernel_ns(int index, int64_t ns) { state().devices[index].fixed_ns = ns; }
void sim_keep_costs(int index, int is_on) {
  std::lock_guard<std::mutex> guard(state().lock);
  state().devices[index].keeps_costs = is_on != 0;
  state().devices[index].costs.clear();
}
void sim_set_copies(double latency_s, double bytes_per_s) {
  state().latency_s = latency_s;
  state().bytes_per_s = bytes_per_s;
}
void sim_set_memory(int index, uint64_t bytes) { state().devices[index].limit = bytes; }

double sim_busy_s(int index, int engine) {
  std::lock_guard<std::mutex> guard(state().lock);
  return double(state().devices[index].busy_ns[engine]) * 1e-9;
}

double sim_elapsed_s(int index) {  // until now, or until all that is queued is done
  std::lock_guard<std::mutex> guard(state().lock);
  const Device& device = state().devices[index];
  int64_t end = std::max({now_ns(), device.free_ns[0], device.free_ns[1], device.free_ns[2]});
  return double(end - device.begin_ns) * 1e-9;
}

double sim_clock_s(int index) {  // when the device will have done what is queued, on the monotonic clock
  std::lock_guard<std::mutex> guard(state().lock);
  const Device& device = state().devices[index];
  return double(std::max({device.free_ns[0], device.free_ns[1], device.free_ns[2]})) * 1e-9;
}

double sim_slept_s(int index) {  // how long it was told to do nothing
  std::lock_guard<std::mutex> guard(state().lock);
  return double(state().devices[index].slept_ns) * 1e-9;
}

uint64_t sim_launches(int index) { return state().devices[index].launches; }
int sim_is_touched(int index) { return is_touched(index); }

// Lines of: site, kind, device, count, drains, newer, blocked nanoseconds.
const char* sim_waits() {
  static thread_local std::string text;
  std::lock_guard<std::mutex> guard(state().lock);
  text.clear();
  for (const auto& [key, count] : state().waits) {
    const auto& [where, kind, device] = key;
    text += std::to_string(where) + "\t" + kind + "\t" + std::to_string(device) + "\t" +
            std::to_string(count.count) + "\t" + std::to_string(count.drains) + "\t" +
            std::to_string(count.newer) + "\t" + std::to_string(count.blocked_ns) + "\n";
  }
  return text.c_str();
}

// Lines of: kind, count, and of both sides: work, stream, site.
const char* sim_races() {
  static thread_local std::string text;
  std::lock_guard<std::mutex> guard(state().lock);
  text.clear();
  for (const Race& race : state().races)
    text += race.kind + "\t" + std::to_string(race.count) + "\t" + race.first + "\t" +
            std::to_string(race.first_slot) + "\t" + std::to_string(race.first_site) + "\t" + race.second + "\t" +
            std::to_string(race.second_slot) + "\t" + std::to_string(race.second_site) + "\n";
  return text.c_str();
}
}
