#include "fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/List.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "generator.h"
#include "guard.h"
#include "host_call.h"
#include "log.h"

namespace vdev {
namespace {

std::atomic<int64_t> g_num_operators{0};

// Gives torch's own generator of the host the place of the device's for one operator, and its state back afterwards.
class BorrowedHostGenerator {
 public:
  explicit BorrowedHostGenerator(const at::Generator& source)
      : host_(at::detail::getDefaultCPUGenerator()), lock_(exclusive()), before_(host_.get_state()) {
    host_.set_state(source.get_state());
  }
  ~BorrowedHostGenerator() {
    if (!is_mutant("cpu_rng_moved")) {
      host_.set_state(before_);
    }
  }

 private:
  static std::mutex& exclusive() {
    static std::mutex* mutex = new std::mutex();
    return *mutex;
  }
  at::Generator host_;
  std::lock_guard<std::mutex> lock_;
  at::Tensor before_;
};

struct Written {
  at::Tensor host;
  at::Tensor argument;
};

// The arguments of a call, from the stack and back.
class Arguments {
 public:
  Arguments(const c10::OperatorHandle& op, torch::jit::Stack* stack, HostCall& call)
      : schema_(op.schema()), stack_(stack), call_(call), begin_(stack->size() - schema_.arguments().size()) {}

  // Replace tensors and devices by those of the host.
  void to_host() {
    const auto& declared = schema_.arguments();
    for (size_t i = 0; i < declared.size(); ++i) {
      auto& value = (*stack_)[begin_ + i];
      const bool written = declared[i].alias_info() != nullptr && declared[i].alias_info()->isWrite();
      if (value.isTensor()) {
        value = one(value.toTensor(), written, lengths_on_host(declared[i]));
      } else if (value.isTensorList()) {
        many(value, written);
      } else if (value.isOptionalTensorList()) {
        many_optional(value);
      } else if (value.isDevice() && value.toDevice().type() == kVdev) {
        const auto device = value.toDevice();
        call_.set_device_index(device.has_index() ? device.index() : current_device());
        value = c10::Device(c10::DeviceType::CPU);
      }
    }
  }

  // The place of the generator among the arguments, or none.
  c10::IValue* generator() {
    const auto& declared = schema_.arguments();
    for (size_t i = 0; i < declared.size(); ++i) {
      if (declared[i].name() == "generator") {
        return &(*stack_)[begin_ + i];
      }
    }
    return nullptr;
  }

  const std::vector<Written>& written() const {
    return written_;
  }

 private:
  at::Tensor one(const at::Tensor& tensor, bool written, bool may_be_on_host) {
    at::Tensor host = call_.to_host(tensor, may_be_on_host);
    if (written) {
      written_.push_back({host, tensor});
    }
    return host;
  }
  // Lengths of sequences stay on the host with every device.
  bool lengths_on_host(const c10::Argument& argument) const {
    return schema_.name() == "aten::_pack_padded_sequence" && argument.name() == "lengths";
  }
  void many(c10::IValue& value, bool written) {
    c10::List<at::Tensor> hosts;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      hosts.push_back(one(tensor, written, false));
    }
    value = std::move(hosts);
  }
  // Indices: torch lets them stay on the host.
  void many_optional(c10::IValue& value) {
    c10::List<std::optional<at::Tensor>> hosts;
    for (const auto& item : value.toOptionalTensorVector()) {
      hosts.push_back(item.has_value() ? std::optional<at::Tensor>(one(*item, false, true)) : std::nullopt);
    }
    value = std::move(hosts);
  }

  const c10::FunctionSchema& schema_;
  torch::jit::Stack* stack_;
  HostCall& call_;
  size_t begin_;
  std::vector<Written> written_;
};

// Results that are written arguments come back as those, all others as tensors of the device.
void results_to_device(torch::jit::Stack* stack, size_t begin, HostCall& call, const std::vector<Written>& written) {
  const auto convert = [&](const at::Tensor& host) {
    for (const auto& pair : written) {
      if (host.is_same(pair.host)) {
        return pair.argument;
      }
    }
    return call.to_device(host);
  };
  for (size_t i = begin; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      value = convert(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> tensors;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        tensors.push_back(convert(tensor));
      }
      value = std::move(tensors);
    }
  }
}

constexpr const char* kProducts[] = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"};

// The mutant that claims bf16 and computes, and answers, in fp32.
void widen_products(const std::string& name, torch::jit::Stack* stack, size_t begin) {
  if (!is_mutant("bf16_in_fp32") || std::find(std::begin(kProducts), std::end(kProducts), name) == std::end(kProducts)) {
    return;
  }
  for (size_t i = begin; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (value.isTensor() && value.toTensor().scalar_type() == at::kBFloat16) {
      value = value.toTensor().to(at::kFloat);
    }
  }
}

void run(const c10::OperatorHandle& op, torch::jit::Stack* stack, Arguments& arguments, int index) {
  const auto on_host = [&] { op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack); };
  c10::IValue* place = arguments.generator();
  if (place == nullptr && !op.hasTag(at::Tag::nondeterministic_seeded)) {
    on_host();
    return;
  }
  const at::Generator given = place != nullptr && place->isGenerator() ? place->toGenerator() : at::Generator();
  const at::Generator source = draw(given, index);
  if (place != nullptr && !is_mutant("cpu_rng_moved")) {
    *place = source;
    on_host();
    return;
  }
  BorrowedHostGenerator borrowed(source);
  if (place != nullptr) {
    *place = c10::IValue();
  }
  on_host();
}

}  // namespace

void before_operator(const std::string& name, int index, bool falls_back) {
  const Settings& s = settings();
  const int64_t number = ++g_num_operators;
  log_operator(name, index, falls_back);
  TORCH_CHECK(s.lost_at == 0 || number < s.lost_at, "vdev:", index, " is lost: operator ", name,
      " cannot run, and no other will in this process (the fault device_lost of VDEV_FAULT).");
  const bool refused = s.unsupported.count(name) > 0 || (s.strict && s.declared.count(name) == 0);
  TORCH_CHECK_NOT_IMPLEMENTED(!refused, "Platform vdev has no kernel for operator ", name,
      ". Its plugin is plugrl-platform-vdev; ", s.unsupported.count(name) > 0
          ? "the fault op_unsupported of VDEV_FAULT took it away."
          : "VDEV_STRICT_OPS=1 allows only those of its operators.txt.");
  if (index == s.slow_device) {
    std::this_thread::sleep_for(std::chrono::microseconds(s.slow_microseconds));
  }
}

void host_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string& name = op.schema().name();
  HostCall call(name.c_str());
  Arguments arguments(op, stack, call);
  arguments.to_host();
  const int index = call.device_index(current_device());
  CurrentDevice there(index);
  before_operator(name, index, true);
  const size_t begin = stack->size() - op.schema().arguments().size();
  widen_products(name, stack, begin);
  run(op, stack, arguments, index);
  for (const auto& pair : arguments.written()) {
    call.write_back(pair.host, pair.argument);
  }
  results_to_device(stack, begin, call, arguments.written());
}

void register_mutant_kernels() {
  static torch::Library* kernels = nullptr;
  if (kernels != nullptr || !(is_mutant("bf16_in_fp32") || is_mutant("mixed_devices_accepted"))) {
    return;
  }
  kernels = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  for (const char* name : kProducts) {
    kernels->impl(name, torch::CppFunction::makeFromBoxedFunction<&host_fallback>());
  }
  for (const char* name : {"aten::add.Tensor", "aten::mul.Tensor"}) {
    kernels->impl(name, torch::CppFunction::makeFromBoxedFunction<&host_fallback>());
  }
}

namespace {

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&host_fallback>());
}

}  // namespace
}  // namespace vdev
