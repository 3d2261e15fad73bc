// What Python sees of the device: the settings go in, devices, memory and generators come out.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Generator.h>

#include "fallback.h"
#include "generator.h"
#include "guard.h"
#include "memory.h"
#include "settings.h"

namespace py = pybind11;

namespace vdev {

void register_hooks();
void register_autocast();

namespace {

template <typename T>
T get(const py::dict& values, const char* key) {
  return values[key].cast<T>();
}

void configure(const py::dict& values) {
  Settings& s = settings();
  s.count = get<int>(values, "count");
  TORCH_CHECK(s.count < kMaxDevices, "At most ", kMaxDevices - 1, " devices can be made, not ", s.count, ".");
  s.budget = get<int64_t>(values, "budget");
  s.strict = get<bool>(values, "strict");
  s.declared = get<std::unordered_set<std::string>>(values, "declared");
  s.unsupported = get<std::unordered_set<std::string>>(values, "unsupported");
  s.mutant = get<std::string>(values, "mutant");
  s.log_folder = get<std::string>(values, "log_folder");
  s.oom_at = get<int64_t>(values, "oom_at");
  s.oom_above = get<int64_t>(values, "oom_above");
  s.lost_at = get<int64_t>(values, "lost_at");
  s.slow_device = get<int>(values, "slow_device");
  s.slow_microseconds = get<int64_t>(values, "slow_microseconds");
  s.stale_rng = get<bool>(values, "stale_rng");
  s.memory_leak = get<bool>(values, "memory_leak");
  register_hooks();
  register_autocast();
  register_mutant_kernels();
}

py::object generator_of(int index) {
  return py::reinterpret_steal<py::object>(THPGenerator_Wrap(default_generator(index)));
}

void translate(std::exception_ptr error) {
  try {
    if (error) {
      std::rethrow_exception(error);
    }
  } catch (const c10::Error& e) {
    py::set_error(PyExc_RuntimeError, e.what_without_backtrace());
  }
}

}  // namespace

PYBIND11_MODULE(_vdev, m) {
  py::register_local_exception_translator(&translate);
  m.def("configure", &configure);
  m.def("device_count", [] { return settings().count; });
  m.def("current_device", &current_device);
  m.def("set_device", &set_current_device);
  m.def("is_used", [](int index) { check_index(index); return is_used(index); });
  m.def("generator", &generator_of);
  m.def("memory_info", [](int index) { return allocator().getMemoryInfo(static_cast<c10::DeviceIndex>(index)); });
}

}  // namespace vdev
