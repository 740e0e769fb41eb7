// Every operation on the device: the CPU's kernel, on the same memory, in the order of a stream.
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/adaption.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>
#include <unordered_set>

#include "device.h"

namespace sim {

at::Generator inner_generator(const std::optional<at::Generator>& given, int device);

using c10::IValue;
using torch::jit::Stack;
using Change = std::function<Tensor(const Tensor&)>;

// Operations whose results have a size that only their values tell: a GPU makes the host wait.
static const std::unordered_set<std::string> TELL_SIZES = {
    "aten::nonzero", "aten::masked_select", "aten::_unique", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive", "aten::unique_dim_consecutive", "aten::bincount"};
// Operations that take tensors of the host beside those of the device.
static const std::unordered_set<std::string> MIXED = {
    "aten::index.Tensor", "aten::index_put_", "aten::_index_put_impl_", "aten::index_put", "aten::set_"};

Tensor host(const Tensor& t) {
  auto* kept = new c10::Storage(t.storage());
  c10::DataPtr data(kept->mutable_data(), kept, [](void* one) { delete static_cast<c10::Storage*>(one); }, at::kCPU);
  c10::Storage storage(c10::Storage::use_byte_size_t(), kept->nbytes(), std::move(data), c10::GetAllocator(at::kCPU), true);
  auto seen = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  seen.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.is_conj()) seen._set_conj(true);
  if (t.is_neg()) seen._set_neg(true);
  return seen;
}

Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, int device) {
  c10::DeviceGuard guard(c10::Device(at::kPrivateUse1, device));
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(at::kPrivateUse1), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype);
}

static IValue changed(const IValue& value, const Change& change) {
  auto one = [&](const Tensor& t) { return t.defined() ? change(t) : t; };
  if (value.isTensor()) return one(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> out;
    for (Tensor t : value.toTensorList()) out.push_back(one(t));
    return out;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> out;
    for (std::optional<Tensor> t : value.toOptionalTensorList()) out.push_back(t ? std::optional<Tensor>(one(*t)) : t);
    return out;
  }
  return value;
}

static Stack changed(const Stack& values, const Change& change) {
  Stack out;
  for (auto& value : values) out.push_back(changed(value, change));
  return out;
}

static Stack on(c10::Device device, const Stack& values) {
  Stack out = values;
  for (auto& value : out) {
    if (value.isDevice()) value = device;
    if (value.isGenerator()) value = IValue();
  }
  return out;
}

// A call of an operation: what it was given, and the device that it runs on.
struct Call {
  c10::OperatorHandle op;
  Stack given;
  int device = -1;
  bool is_random;
  std::optional<at::Generator> generator;

  Call(const c10::OperatorHandle& op, Stack values) : op(op), given(std::move(values)), is_random(op.hasTag(at::Tag::nondeterministic_seeded)) {
    std::optional<Tensor> foreign;
    for (auto& value : given) {
      changed(value, [&](const Tensor& t) {
        if (is_here(t)) take(t.device());
        else if (t.dim() > 0) foreign = t;
        return t;
      });
      if (value.isDevice() && value.toDevice().has_index() && device < 0) device = value.toDevice().index();
      if (value.isGenerator()) generator = value.toGenerator();
    }
    if (device < 0) device = current_device();
    TORCH_CHECK(!foreign || MIXED.count(name()) || MIXED.count(op.schema().name()),
                "Expected all tensors to be on the same device, but found at least two devices, sim:", device, " and ", foreign->device(), "! (", name(), ")");
  }
  std::string name() const { return toString(op.operator_name()); }
  void take(c10::Device one) {
    TORCH_CHECK(device < 0 || device == one.index(), "Expected all tensors to be on the same device, but found at least two devices, sim:", device, " and ", one, "! (", name(), ")");
    device = one.index();
  }
  bool makes_the_host_wait() const {
    for (auto& result : op.schema().returns())
      if (result.type()->kind() != c10::TypeKind::TensorType && result.type()->kind() != c10::TypeKind::ListType) return true;
    if (TELL_SIZES.count(op.schema().name()) || name() == "aten::repeat_interleave.Tensor") return true;
    bool by_mask = false;
    if (name() == "aten::index.Tensor") changed(given[1], [&](const Tensor& t) { by_mask |= t.scalar_type() == at::kBool; return t; });
    return by_mask;
  }
};

// Run the CPU's kernel; a random one draws from the device's generator.
static void run_on_cpu(const c10::OperatorHandle& op, Stack* stack, std::optional<at::Generator> drawn_from) {
  c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  if (!drawn_from) return op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  auto usual = at::globalContext().defaultGenerator(at::kCPU);
  auto kept = usual.get_state();
  usual.set_state(drawn_from->get_state());
  auto put_back = [&] {
    drawn_from->set_state(usual.get_state());
    usual.set_state(kept);
  };
  try {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  } catch (...) {
    put_back();
    throw;
  }
  put_back();
}

static std::optional<at::Generator> drawn_from(const Call& call) {
  return call.is_random ? std::optional(inner_generator(call.generator, call.device)) : std::nullopt;
}

struct Seen {
  Tensor own, there;
};

// What an operation returned, on the device: the tensor that was given, a view of it, or a copy.
static Tensor back(const Tensor& result, const std::vector<Seen>& seen, int device) {
  for (auto& [own, there] : seen)
    if (there.is_same(result)) return own;
  for (auto& [own, there] : seen)
    if (there.has_storage() && result.has_storage() && there.storage().is_alias_of(result.storage()))
      return at::native::as_strided_tensorimpl(own, result.sizes(), result.strides(), result.storage_offset());
  auto out = empty_strided(result.sizes(), result.strides(), result.scalar_type(), device);
  host(out).copy_(result);
  return out;
}

static Stack run_now(const Call& call) {
  std::vector<Seen> seen;
  auto stack = changed(on(at::kCPU, call.given), [&](const Tensor& t) {
    if (!is_here(t)) return t;
    seen.push_back({t, host(t)});
    return seen.back().there;
  });
  run_on_cpu(call.op, &stack, drawn_from(call));
  for (auto& [own, there] : seen) // an output that the kernel gave another size
    if (own.sizes() != there.sizes()) {
      at::native::resize_(own, there.sizes());
      if (there.storage().data() != own.storage().data()) host(own).copy_(there);
    }
  return changed(stack, [&](const Tensor& t) { return back(t, seen, call.device); });
}

// Ask the meta device for sizes; make the results now, and fill them when the stream gets there.
static std::optional<Stack> run_later(const Call& call) {
  for (auto& result : call.op.schema().returns())
    if (result.alias_info() && !result.alias_info()->isWrite()) return std::nullopt;
  std::vector<Seen> seen;
  auto shapes = changed(on(at::kMeta, call.given), [&](const Tensor& t) {
    seen.push_back({t, at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta).pinned_memory(false))});
    return seen.back().there;
  });
  try {
    c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    call.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &shapes);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  for (auto& [own, there] : seen)
    if (is_here(own) && own.sizes() != there.sizes()) at::native::resize_(own, there.sizes());
  auto results = changed(shapes, [&](const Tensor& t) {
    for (auto& [own, there] : seen)
      if (there.is_same(t)) return own;
    return empty_strided(t.sizes(), t.strides(), t.scalar_type(), call.device);
  });
  auto captured = changed(on(at::kCPU, call.given), [](const Tensor& t) { return is_here(t) ? host(t) : t.clone(); });
  auto filled = changed(results, [](const Tensor& t) { return is_here(t) ? host(t) : t; });
  submit(call.device, [op = call.op, captured, filled, from = drawn_from(call)]() mutable {
    run_on_cpu(op, &captured, from);
    for (size_t i = 0; i < filled.size(); i++) {
      if (filled[i].isTensor() && !filled[i].toTensor().storage().is_alias_of(captured[i].toTensor().storage())) {
        auto to = filled[i].toTensor();
        auto& from_there = captured[i].toTensor();
        if (to.storage().data() != from_there.storage().data()) to.copy_(from_there);
      } else if (filled[i].isTensorList()) {
        for (size_t k = 0; k < filled[i].toTensorList().size(); k++) {
          Tensor to = filled[i].toTensorList().get(k), from_there = captured[i].toTensorList().get(k);
          if (to.storage().data() != from_there.storage().data()) to.copy_(from_there);
        }
      }
    }
  });
  return results;
}

static void any_kernel(const c10::OperatorHandle& op, Stack* stack) {
  auto count = op.schema().arguments().size();
  Call call(op, torch::jit::last(*stack, count).vec());
  bool waits = call.makes_the_host_wait();
  if (waits) host_waits(call.name().c_str());
  std::optional<Stack> results;
  if (runs_late() && !waits) results = run_later(call);
  if (!results) {
    finish_stream(call.device);
    results = run_now(call);
  }
  torch::jit::drop(*stack, count);
  for (auto& result : *results) stack->push_back(result);
}

// torch asks a device for convolutions under names of their own.
static c10::OperatorHandle operation(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

static void convolution(const c10::OperatorHandle&, Stack* stack) { any_kernel(operation("aten::convolution"), stack); }

static void convolution_backward(const c10::OperatorHandle& op, Stack* stack) {
  auto count = op.schema().arguments().size();
  auto bias_sizes = std::vector<int64_t>{torch::jit::peek(*stack, 0, count).toTensor().size(1)};
  stack->insert(stack->end() - count + 3, IValue(bias_sizes));
  any_kernel(operation("aten::convolution_backward"), stack);
}

static Tensor empty_memory_format(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device && device->has_index() ? device : std::nullopt);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), c10::GetAllocator(at::kPrivateUse1), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), format);
}

static Tensor empty_of_strides(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  int index = device && device->has_index() ? device->index() : current_device();
  return empty_strided(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), c10::dtype_or_default(dtype), index);
}

// The one way between host and device. It makes the host wait unless it is non-blocking; from the
// device also, unless it ends in pinned memory.
static Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  int device = (is_here(to) ? to : from).device().index();
  bool both = is_here(from) && is_here(to);
  bool waits = !both && !(non_blocking && (is_here(to) || to.is_pinned()));
  if (both && from.device() != to.device()) finish_stream(from.device().index());
  auto source = is_here(from) ? host(from) : from.detach();
  auto target = is_here(to) ? host(to) : to.detach();
  if (waits) {
    host_waits(is_here(from) ? "copy to the host" : "blocking copy to the device");
    finish_stream(device);
    target.copy_(source);
    return to;
  }
  if (runs_late() && !is_here(from) && !from.is_pinned()) source = source.clone();
  submit(device, [source, target]() mutable {
    c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    target.copy_(source);
  });
  return to;
}

static Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  at::native::resize_(to, from.sizes());
  return copy_from(from, to, false);
}

static c10::Scalar local_scalar_dense(const Tensor& self) {
  host_waits("item");
  finish_stream(self.device().index());
  c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  return host(self).item();
}

static Tensor& set_storage(Tensor& self, c10::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  return self;
}

static Tensor& set_whole(Tensor& self, c10::Storage storage) {
  auto count = static_cast<int64_t>(storage.nbytes() / self.element_size());
  return set_storage(self, std::move(storage), 0, c10::SymIntArrayRef({c10::SymInt(count)}), c10::SymIntArrayRef({c10::SymInt(1)}));
}

static Tensor& set_tensor(Tensor& self, const Tensor& other) {
  return set_storage(self, other.storage(), other.sym_storage_offset(), other.sym_sizes(), other.sym_strides());
}

static Tensor as_strided(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt);
}

static Tensor view(const Tensor& self, c10::SymIntArrayRef size) { return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size)); }

static Tensor reshape_alias(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

static const Tensor& resize(const Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}

// Under autocast: a cast of every operand, then the operation.
template <bool LOWER>
static void cast_operands(const c10::OperatorHandle& op, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::AutocastPrivateUse1);
  auto dtype = LOWER ? at::autocast::get_autocast_dtype(at::kPrivateUse1) : at::kFloat;
  auto count = op.schema().arguments().size();
  Stack given = torch::jit::last(*stack, count).vec();
  torch::jit::drop(*stack, count);
  for (auto& value : changed(given, [&](const Tensor& t) { return at::autocast::cached_cast(dtype, t, at::kPrivateUse1); })) stack->push_back(value);
  op.callBoxed(stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&any_kernel>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty_memory_format);
  m.impl("empty_strided", &empty_of_strides);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_.source_Storage", &set_whole);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("resize_", &resize);
  m.impl("unfold", &at::native::unfold);
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
  // Memory is not used again while a task holds it.
  m.impl("record_stream", [](Tensor&, c10::Stream) {});
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  for (auto* name : {"linear", "matmul", "mm", "mv", "bmm", "addmm", "addmv", "addbmm", "baddbmm", "conv1d", "conv2d", "conv3d", "_convolution",
                     "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "scaled_dot_product_attention", "prelu", "lstm_cell", "gru_cell"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&cast_operands<true>>());
  for (auto* name : {"softmax.int", "log_softmax.int", "nll_loss", "nll_loss_nd", "cross_entropy_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "kl_div",
                     "binary_cross_entropy_with_logits", "layer_norm", "group_norm", "exp", "log", "pow.Tensor_Scalar", "sum", "cumsum", "norm.Scalar", "softplus"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&cast_operands<false>>());
}

} // namespace sim
