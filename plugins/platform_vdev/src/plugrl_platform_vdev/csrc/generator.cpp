#include "generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Utils.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/GeneratorImpl.h>

#include <cstring>

namespace vdev {
namespace {

// What DTensor's random numbers rely on: the seed in the first eight bytes, the offset in the next eight.
constexpr size_t kStateBytes = 16;
constexpr uint64_t kOffsetStep = 4;

class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(int index)
      : GeneratorImpl(
            c10::Device(kVdev, static_cast<c10::DeviceIndex>(index)), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(uint64_t seed) override {
    if (!is_mutant("seed_ignored")) {
      seed_ = seed;
      offset_ = 0;
    }
  }
  uint64_t current_seed() const override {
    return seed_;
  }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_offset(uint64_t offset) override {
    offset_ = offset;
  }
  uint64_t get_offset() const override {
    return offset_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.layout() == c10::kStrided && state.device().is_cpu() && state.is_contiguous() &&
            state.dtype() == caffe2::TypeMeta::Make<uint8_t>() && state.numel() == kStateBytes,
        "The state of a vdev generator is a contiguous uint8 tensor of ", kStateBytes, " bytes on the host.");
    if (is_mutant("rng_state_ignored")) {
      return;
    }
    const auto* bytes = static_cast<const char*>(state.data());
    std::memcpy(&seed_, bytes, sizeof(seed_));
    std::memcpy(&offset_, bytes + sizeof(seed_), sizeof(offset_));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state = at::detail::empty_cpu({static_cast<int64_t>(kStateBytes)}, c10::TensorOptions(at::kByte));
    auto* bytes = static_cast<char*>(state.mutable_data_ptr());
    std::memcpy(bytes, &seed_, sizeof(seed_));
    std::memcpy(bytes + sizeof(seed_), &offset_, sizeof(offset_));
    return state.getIntrusivePtr();
  }

  uint64_t next_draw() {
    // The 64 bits are mixed because the host's generator takes only the low half of a seed.
    uint64_t mixed = seed_ * 0x9E3779B97F4A7C15ull + offset_ + 0xBF58476D1CE4E5B9ull;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBull;
    if (!settings().stale_rng) {
      offset_ += kOffsetStep;
    }
    return mixed ^ (mixed >> 31);
  }

 private:
  Generator* clone_impl() const override {
    auto* twin = new Generator(device().index());
    twin->seed_ = seed_;
    twin->offset_ = offset_;
    return twin;
  }

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

}  // namespace

at::Generator new_generator(int index) {
  check_index(index);
  return at::make_generator<Generator>(index);
}

const at::Generator& default_generator(int index) {
  static auto* generators = new std::vector<at::Generator>();
  static std::mutex* mutex = new std::mutex();
  check_index(index);
  std::lock_guard<std::mutex> lock(*mutex);
  if (generators->empty()) {
    for (int i = 0; i < kMaxDevices; ++i) {
      generators->push_back(at::make_generator<Generator>(i));
    }
  }
  return (*generators)[index];
}

at::Generator draw(const at::Generator& generator, int index) {
  const at::Generator& source = generator.defined() ? generator : default_generator(index);
  TORCH_CHECK(source.device().type() == kVdev, "Expected a 'vdev' device type for generator but found '",
      source.device().type(), "'.");
  TORCH_CHECK(source.device().index() == index, "Expected a generator of vdev:", index, " but found one of ",
      source.device(), ".");
  std::lock_guard<std::mutex> lock(source.unsafeGetGeneratorImpl()->mutex_);
  auto* impl = static_cast<Generator*>(source.unsafeGetGeneratorImpl());
  return at::detail::createCPUGenerator(impl->next_draw());
}

}  // namespace vdev
