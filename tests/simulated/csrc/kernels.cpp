// Every operation on a simulated device: the CPU's kernel, on the device's own memory, at the time it is queued.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>
#include <set>
#include <unordered_map>

#include "backend.h"

namespace at::autocast {
TORCH_API ScalarType get_autocast_dtype(DeviceType device_type);
TORCH_API Tensor cached_cast(ScalarType to_type, const Tensor& arg, DeviceType device_type);
}  // namespace at::autocast

namespace sim {
namespace {

constexpr auto kSim = c10::DeviceType::PrivateUse1;
using Stack = torch::jit::Stack;

bool is_ours(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kSim; }

Range range_of(const at::Tensor& tensor, bool is_written) {
  uint64_t low = uint64_t(tensor.storage_offset()) * tensor.element_size(), high = low;
  if (tensor.numel() > 0) {
    high += tensor.element_size();
    for (int64_t k = 0; k < tensor.dim(); ++k)
      high += uint64_t((tensor.size(k) - 1) * tensor.stride(k)) * tensor.element_size();
  }
  return {tensor.storage().data(), low, high, is_written};
}

at::Tensor tensor_on(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return tensor;
}

c10::Storage cpu_storage(const c10::Storage& storage) {
  c10::DataPtr data(shadow_of(storage.data()), c10::Device(c10::DeviceType::CPU));
  return c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data), c10::GetCPUAllocator(), true);
}

// The tensor as CPU kernels see it: the same memory, where it is accessible.
at::Tensor bare(const at::Tensor& tensor) {
  return tensor_on(cpu_storage(tensor.storage()), c10::DispatchKey::CPU, tensor);
}

// What a GPU asks of two lists before it takes them in one kernel (ATen/native/ForeachUtils.h).
bool lies_like(const std::vector<at::Tensor>& list, const std::vector<at::Tensor>& other, bool has_one_type) {
  if (list.size() != other.size()) return false;
  for (size_t k = 0; k < list.size(); ++k) {
    const at::Tensor &one = list[k], &two = other[k];
    if (one.scalar_type() != list[0].scalar_type() || two.scalar_type() != other[0].scalar_type()) return false;
    if (has_one_type && one.scalar_type() != two.scalar_type()) return false;
    if (one.device() != other[0].device() || !one.is_non_overlapping_and_dense() || one.sizes() != two.sizes())
      return false;
    for (int64_t d = 0; d < one.dim(); ++d)
      if (one.size(d) != 1 && one.stride(d) != two.stride(d)) return false;
  }
  return true;
}

// Kernels of one name on tensors of the same shapes and types are of one kind.
uint64_t kind_of(uint64_t kind, const std::vector<at::Tensor>& tensors) {
  auto add = [&kind](uint64_t number) { kind = (kind ^ number) * 0x9E3779B97F4A7C15ull ^ (kind >> 29); };
  for (const at::Tensor& tensor : tensors) {
    add(uint64_t(tensor.scalar_type()));
    for (int64_t size : tensor.sizes()) add(uint64_t(size));
    for (int64_t stride : tensor.strides()) add(uint64_t(stride));
  }
  return kind;
}

uint64_t kind_of(const std::string& name, const std::vector<at::Tensor>& tensors) {
  return kind_of(uint64_t(std::hash<std::string>{}(name)), tensors);
}

// One call of an operation: its arguments on both sides, and what it touched.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack* stack) : op_(op), schema_(op.schema()), stack_(stack) {
    first_ = stack->size() - schema_.arguments().size();
    find_device();
    for (size_t k = 0; k < schema_.arguments().size(); ++k) lower(schema_.arguments()[k], (*stack_)[first_ + k]);
  }

  void run(const c10::OperatorHandle& kernel) {
    OnDevice on_device(device_);
    at::AutoDispatchBelowADInplaceOrView below;
    begin_ns_ = now_ns();
    int64_t begin = thread_ns();
    kernel.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack_);
    cpu_ns_ = thread_ns() - begin;
  }

  void finish() {
    for (size_t k = 0; k < ours_.size(); ++k)
      if (is_written_[k]) take_shape(ours_[k], bares_[k]);
    size_t count = schema_.returns().size();
    bool is_view = count > 0;
    for (size_t k = 0; k < count; ++k) {
      const auto* alias = schema_.returns()[k].alias_info();
      is_view = is_view && alias != nullptr && !alias->isWrite();
      lift((*stack_)[stack_->size() - count + k]);
    }
    if (is_view) return;
    uint64_t kind = kind_of(kind_of(schema_.name() + "." + schema_.overload_name(), ours_), made_);
    launch(current_slot(device_), schema_.name().c_str(), kind, ranges_, begin_ns_, cpu_ns_, num_kernels());
  }

  int device() const { return device_; }
  bool has_mask() const { return has_mask_; }
  bool has_far_index() const { return has_far_index_; }

 private:
  template <class Visit>
  static void each_tensor(const c10::IValue& value, Visit visit) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) visit(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector())
        if (tensor.defined()) visit(tensor);
    } else if (value.isList()) {
      for (const c10::IValue& one : value.toListRef())
        if (one.isTensor() && one.toTensor().defined()) visit(one.toTensor());
    }
  }

  // An operation on lists is one kernel only where all of them lie alike: else one for each tensor, as on a GPU.
  int64_t num_kernels() const {
    if (schema_.name().rfind("aten::_foreach_", 0) != 0 || lists_.empty()) return 1;
    bool is_one = true;
    for (const auto& list : lists_) is_one = is_one && lies_like(list, lists_[0], true);
    return is_one ? 1 : int64_t(lists_[0].size());
  }

  void find_device() {
    for (size_t k = 0; k < schema_.arguments().size(); ++k)
      each_tensor((*stack_)[first_ + k], [&](const at::Tensor& tensor) {
        if (!is_ours(tensor)) return;
        int index = tensor.device().index();
        TORCH_CHECK(device_ < 0 || device_ == index,
                    "Expected all tensors to be on the same device, but found at least two devices, sim:", device_,
                    " and sim:", index, "! (", schema_.name(), ")");
        device_ = index;
      });
    if (device_ >= 0) return;
    device_ = current_device();
    for (size_t k = 0; k < schema_.arguments().size(); ++k) {
      const c10::IValue& value = (*stack_)[first_ + k];
      if (value.isDevice() && value.toDevice().type() == kSim && value.toDevice().has_index())
        device_ = value.toDevice().index();
    }
  }

  void lower(const c10::Argument& argument, c10::IValue& value) {
    bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (value.isTensor()) {
      value = lowered(value.toTensor(), is_written);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      lists_.push_back(value.toTensorVector());
      for (const at::Tensor& tensor : lists_.back()) list.push_back(lowered(tensor, is_written));
      value = list;
    } else if (value.isList() && argument.type()->str().find("Tensor") != std::string::npos) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& one : value.toListRef())
        list.push_back(one.isNone() ? std::nullopt : std::optional<at::Tensor>(lowered_index(one.toTensor())));
      value = list;
    } else if (value.isDevice()) {
      value = c10::Device(c10::DeviceType::CPU);
    } else if (value.isGenerator()) {
      value = inner_generator(value.toGenerator());
      has_generator_ = true;
    } else if (value.isNone() && argument.name() == "generator") {
      value = inner_default(device_);
      has_generator_ = true;
    }
  }

  at::Tensor lowered_index(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    has_mask_ = has_mask_ || tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
    if (is_ours(tensor)) return lowered(tensor, false);
    has_far_index_ = has_far_index_ || tensor.dim() > 0;  // indices may lie on the host, and are uploaded
    return tensor;
  }

  at::Tensor lowered(const at::Tensor& tensor, bool is_written) {
    if (!tensor.defined()) return tensor;
    if (!is_ours(tensor)) {
      TORCH_CHECK(tensor.dim() == 0 && !is_written,
                  "Expected all tensors to be on the same device, but found at least two devices, sim:", device_,
                  " and ", tensor.device(), "! (", schema_.name(), ")");
      return tensor;
    }
    auto* storage = tensor.storage().unsafeGetStorageImpl();
    auto found = storages_.find(storage);
    if (found == storages_.end()) found = storages_.emplace(storage, cpu_storage(tensor.storage())).first;
    at::Tensor bare = tensor_on(found->second, c10::DispatchKey::CPU, tensor);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) bare.unsafeGetTensorImpl()->set_wrapped_number(true);
    originals_.emplace(found->second.unsafeGetStorageImpl(), tensor.storage());
    ours_.push_back(tensor);
    bares_.push_back(bare);
    is_written_.push_back(is_written);
    ranges_.push_back(range_of(tensor, is_written));
    return bare;
  }

  // A result of the CPU's kernel becomes a tensor of the device.
  at::Tensor lifted(const at::Tensor& made) {
    if (!made.defined()) return made;
    for (size_t k = 0; k < bares_.size(); ++k)
      if (made.is_same(bares_[k])) return ours_[k];
    auto* storage = made.storage().unsafeGetStorageImpl();
    auto found = originals_.find(storage);
    if (found == originals_.end()) found = originals_.emplace(storage, adopted(made.storage())).first;
    at::Tensor tensor = tensor_on(found->second, c10::DispatchKey::PrivateUse1, made);
    ranges_.push_back(range_of(tensor, true));
    made_.push_back(tensor);
    return tensor;
  }

  c10::Storage adopted(const c10::Storage& storage) {
    size_t size = storage.nbytes();
    void* shadow = nullptr;
    if (storage.data() != nullptr && is_shadow(storage.data()) && storage.use_count() == 1) {
      c10::DataPtr data = storage.unsafeGetStorageImpl()->set_data_ptr(c10::DataPtr(nullptr, c10::Device("cpu")));
      shadow = data.get();
      data.release_context();
    } else if (size > 0) {
      shadow = allocate(device_, current_slot(device_), size);
      TORCH_CHECK(shadow != nullptr, "sim:", device_, " out of memory");
      memcpy(shadow, storage.data(), size);
    }
    return c10::Storage(c10::Storage::use_byte_size_t(), size, device_data(shadow, device_), device_allocator(), true);
  }

  void lift(c10::IValue& value) {
    if (value.isTensor()) {
      value = lifted(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(lifted(tensor));
      value = list;
    }
  }

  // An argument that was written may have grown.
  void take_shape(const at::Tensor& tensor, const at::Tensor& bare) {
    const c10::Storage& from = bare.storage();
    c10::StorageImpl* to = tensor.storage().unsafeGetStorageImpl();
    if (from.data() != shadow_of(to->data()) || from.nbytes() != to->nbytes()) {
      size_t size = from.nbytes();
      bool is_new = from.data() != shadow_of(to->data());
      if (is_new) {
        c10::DataPtr data = from.unsafeGetStorageImpl()->set_data_ptr(c10::DataPtr(nullptr, c10::Device("cpu")));
        void* shadow = data.get();
        data.release_context();
        to->set_data_ptr(device_data(shadow, device_));
      }
      to->set_nbytes(size);
    }
    if (tensor.sizes() != bare.sizes() || tensor.strides() != bare.strides())
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(bare.sizes(), bare.strides(), bare.storage_offset());
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  Stack* stack_;
  size_t first_ = 0;
  int device_ = -1;
  bool has_generator_ = false, has_mask_ = false, has_far_index_ = false;
  int64_t begin_ns_ = 0, cpu_ns_ = 0;
  std::vector<std::vector<at::Tensor>> lists_;
  std::vector<at::Tensor> ours_, bares_, made_;
  std::vector<bool> is_written_;
  std::vector<Range> ranges_;
  std::unordered_map<c10::StorageImpl*, c10::Storage> storages_;   // ours to the CPU's
  std::unordered_map<c10::StorageImpl*, c10::Storage> originals_;  // the CPU's to ours

 public:
  bool has_generator() const { return has_generator_; }
};

// Operations that draw without being given a generator draw from the CPU's default one: lend it the device's state.
class LentGenerator {
 public:
  explicit LentGenerator(int device) : inner_(inner_default(device)), outer_(at::detail::getDefaultCPUGenerator()) {
    saved_ = outer_.clone();
    pour(inner_, outer_);
  }
  ~LentGenerator() {
    pour(outer_, inner_);
    pour(saved_, outer_);
  }

 private:
  static void pour(const at::Generator& from, const at::Generator& to) {
    auto* source = static_cast<at::CPUGeneratorImpl*>(from.unsafeGetGeneratorImpl());
    auto* target = static_cast<at::CPUGeneratorImpl*>(to.unsafeGetGeneratorImpl());
    target->set_engine(source->engine());
    target->set_next_float_normal_sample(source->next_float_normal_sample());
    target->set_next_double_normal_sample(source->next_double_normal_sample());
  }
  at::Generator inner_, outer_, saved_;
};

// The shape of what they return depends on values: a real device is waited for.
const std::set<std::string>& of_unknown_shape() {
  static const auto* names = new std::set<std::string>{
      "aten::nonzero", "aten::masked_select", "aten::_unique", "aten::_unique2", "aten::unique_dim",
      "aten::unique_consecutive", "aten::unique_dim_consecutive", "aten::repeat_interleave", "aten::bincount",
      "aten::equal"};
  return *names;
}

void run_boxed(const c10::OperatorHandle& op, Stack* stack) {
  check_usable();
  const std::string& name = op.schema().name();
  Call call(op, stack);
  if (!call.has_generator() && op.hasTag(at::Tag::nondeterministic_seeded)) {
    LentGenerator lent(call.device());
    call.run(op);
  } else {
    call.run(op);
  }
  call.finish();
  if (of_unknown_shape().count(name) != 0 || call.has_mask()) wait_for(current_slot(call.device()), "shape");
  else if (call.has_far_index()) wait_for(current_slot(call.device()), "copy");
}

// --- memory and copies ------------------------------------------------------------------------------

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> format) {
  check_usable();
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  c10::DeviceGuard guard(device.value_or(c10::Device(kSim)));
  return at::detail::empty_generic(size, device_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::get_default_dtype_as_scalartype()), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool> pin_memory) {
  check_usable();
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  c10::DeviceGuard guard(device.value_or(c10::Device(kSim)));
  return at::detail::empty_strided_generic(size, stride, device_allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype.value_or(at::get_default_dtype_as_scalartype()));
}

// One block of bytes on either side, laid out alike.
bool is_plain(const at::Tensor& from, const at::Tensor& to) {
  return from.dtype() == to.dtype() && from.sizes() == to.sizes() && from.strides() == to.strides() &&
         from.is_non_overlapping_and_dense();
}

void copy_values(const at::Tensor& from, const at::Tensor& to) {
  at::AutoDispatchBelowADInplaceOrView below;
  to.copy_(from);
}

void copy_on_devices(const at::Tensor& from, const at::Tensor& to) {
  int source = from.device().index(), target = to.device().index();
  std::vector<Range> ranges{range_of(from, false), range_of(to, true)};
  int64_t begin_ns = now_ns(), begin = thread_ns();
  copy_values(bare(from), bare(to));
  int64_t cpu_ns = thread_ns() - begin;
  if (source == target)
    launch(current_slot(target), "aten::copy_", kind_of("aten::copy_", {from, to}), ranges, begin_ns, cpu_ns);
  else launch_copy(current_slot(source), current_slot(target), Engine::ToDevice, ranges, to.nbytes());
}

void copy_to_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  int slot = current_slot(from.device().index());
  std::vector<Range> ranges{range_of(from, false)};
  bool is_late = non_blocking && to.numel() > 0 && is_pinned(to.const_data_ptr()) && to.is_non_overlapping_and_dense();
  if (is_late) {
    at::Tensor staged = bare(from);
    if (!is_plain(from, to)) {  // converted on the device first
      staged = at::empty_strided(to.sizes(), to.strides(), to.options().pinned_memory(false));
      copy_values(bare(from), staged);
    }
    launch_to_host(slot, ranges, to.data_ptr(), staged.const_data_ptr(), to.nbytes());
    return;
  }
  copy_values(bare(from), to);
  launch_copy(slot, -1, Engine::ToHost, ranges, to.nbytes());
  wait_for(slot, "copy");
}

void copy_to_device(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  int slot = current_slot(to.device().index());
  std::vector<Range> ranges{range_of(to, true)};
  bool is_late = non_blocking && from.numel() > 0 && is_pinned(from.const_data_ptr()) &&
                 from.is_non_overlapping_and_dense();
  if (is_late) before_host_source(slot, from.const_data_ptr(), from.nbytes());
  copy_values(from, bare(to));
  if (is_late) {
    launch_to_device(slot, ranges, from.const_data_ptr(), from.nbytes());
    return;
  }
  launch_copy(slot, -1, Engine::ToDevice, ranges, to.nbytes());
  wait_for(slot, "copy");
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  check_usable();
  if (to.numel() == 0) return to;
  if (is_ours(from) && is_ours(to)) copy_on_devices(from, to);
  else if (is_ours(from)) copy_to_host(from, to, non_blocking);
  else copy_to_device(from, to, non_blocking);
  return to;
}

// One kernel where a GPU has one, else a copy for each pair.
void copy_lists(at::TensorList to, at::TensorList from, bool non_blocking) {
  std::vector<at::Tensor> targets = to.vec(), sources = from.vec();
  bool are_ours = true;
  for (const at::Tensor& tensor : sources) are_ours = are_ours && is_ours(tensor);
  if (!are_ours || !lies_like(targets, sources, false)) {
    for (size_t k = 0; k < targets.size(); ++k) targets[k].copy_(sources[k], non_blocking);
    return;
  }
  check_usable();
  std::vector<Range> ranges;
  int64_t begin_ns = now_ns(), begin = thread_ns();
  for (size_t k = 0; k < targets.size(); ++k) {
    copy_values(bare(sources[k]), bare(targets[k]));
    ranges.push_back(range_of(sources[k], false));
    ranges.push_back(range_of(targets[k], true));
  }
  int64_t cpu_ns = thread_ns() - begin;
  uint64_t kind = kind_of("aten::_foreach_copy_", targets);
  launch(current_slot(targets[0].device().index()), "aten::_foreach_copy_", kind, ranges, begin_ns, cpu_ns);
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  check_usable();
  int slot = current_slot(tensor.device().index());
  launch_copy(slot, -1, Engine::ToHost, {range_of(tensor, false)}, tensor.element_size());
  wait_for(slot, "item");
  at::AutoDispatchBelowADInplaceOrView below;
  return at::_local_scalar_dense(bare(tensor));
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  note_use(tensor.storage().data(), slot_of(stream.device_index(), int(stream.id())));
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
at::Tensor view(const at::Tensor& self, at::IntArrayRef size) { return at::native::view(self, size); }
at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}
at::Tensor& set_storage(at::Tensor& self, at::Storage source) { return at::native::set_(self, source); }
at::Tensor& set_storage_at(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                           at::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, source, offset, size, stride);
}
at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) { return at::native::set_tensor_(self, source); }

// --- autocast ---------------------------------------------------------------------------------------

void cast_arguments(const c10::OperatorHandle& op, Stack* stack, at::ScalarType dtype) {
  size_t count = op.schema().arguments().size();
  for (size_t k = stack->size() - count; k < stack->size(); ++k) {
    c10::IValue& value = (*stack)[k];
    if (value.isTensor() && value.toTensor().defined()) {
      value = at::autocast::cached_cast(dtype, value.toTensor(), kSim);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector())
        list.push_back(at::autocast::cached_cast(dtype, tensor, kSim));
      value = list;
    }
  }
}

void autocast_lower(const c10::OperatorHandle& op, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::AutocastPrivateUse1);
  cast_arguments(op, stack, at::autocast::get_autocast_dtype(kSim));
  op.callBoxed(stack);
}

void autocast_single(const c10::OperatorHandle& op, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::AutocastPrivateUse1);
  cast_arguments(op, stack, at::kFloat);
  op.callBoxed(stack);
}

// The result is float32, the argument stays as it is.
void autocast_result(const c10::OperatorHandle& op, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::AutocastPrivateUse1);
  const auto& arguments = op.schema().arguments();
  size_t first = stack->size() - arguments.size();
  auto dtype = (*stack)[first].toTensor().scalar_type();
  for (size_t k = 0; k < arguments.size(); ++k)
    if (arguments[k].name() == "dtype" && (*stack)[first + k].isNone() && (dtype == at::kHalf || dtype == at::kBFloat16))
      (*stack)[first + k] = at::kFloat;
  op.callBoxed(stack);
}

const char* const kLower[] = {
    "_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul",
    "einsum", "mm", "mv", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot", "lstm_cell",
    "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "scaled_dot_product_attention"};

const char* const kSingle[] = {
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
    "rms_norm", "group_norm", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss",
    "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "margin_ranking_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss",
    "binary_cross_entropy_with_logits", "dist", "cdist", "renorm", "logsumexp", "upsample_nearest2d",
    "upsample_bilinear2d"};

const char* const kResult[] = {"prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "sum",
                               "sum.dim_IntList", "linalg_vector_norm"};

// --- registration -----------------------------------------------------------------------------------

const std::set<std::string> kByHand{
    "empty.memory_format", "empty_strided", "as_strided", "view", "_reshape_alias", "_local_scalar_dense",
    "set_.source_Storage", "set_.source_Storage_storage_offset", "set_.source_Tensor", "set_", "_copy_from",
    "_copy_from_and_resize", "record_stream", "_foreach_copy_"};

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage_at);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("record_stream", record_stream);
  m.impl("_foreach_copy_", copy_lists);
  // All that has a kernel of the CPU's own goes there whole, so that it is one kernel here too and the bits are the
  // same; without this, torch would cut many of them into smaller ones for a device that it does not know.
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    std::string full = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    auto op = dispatcher.findSchema(name);
    bool is_whole = name.name.rfind("aten::_foreach_", 0) == 0 || full == "convolution" || full == "convolution_backward";
    if (!op.has_value() || kByHand.count(full) != 0) continue;
    if (op->hasKernelForDispatchKey(c10::DispatchKey::CPU) || is_whole)
      m.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_boxed>());
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_boxed>()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  for (const char* name : kLower) m.impl(name, torch::CppFunction::makeFromBoxedFunction<&autocast_lower>());
  for (const char* name : kSingle) m.impl(name, torch::CppFunction::makeFromBoxedFunction<&autocast_single>());
  for (const char* name : kResult) m.impl(name, torch::CppFunction::makeFromBoxedFunction<&autocast_result>());
}

}  // namespace
}  // namespace sim

extern "C" {

size_t sim_rng_size() {
  auto state = sim::inner_default(0).unsafeGetGeneratorImpl()->get_state();
  return state->numel();
}

void sim_get_rng(int device, void* to) {
  auto state = sim::inner_default(device).unsafeGetGeneratorImpl()->get_state();
  memcpy(to, state->data(), size_t(state->numel()));
}

void sim_set_rng(int device, const void* from) {
  auto generator = sim::inner_default(device);
  auto state = generator.unsafeGetGeneratorImpl()->get_state();
  memcpy(state->mutable_data(), from, size_t(state->numel()));
  generator.unsafeGetGeneratorImpl()->set_state(*state);
}
}
