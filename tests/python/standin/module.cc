// The Python module of the stand-in device.
#include <chrono>
#include <thread>
#include <torch/extension.h>

#include "tests/python/standin/generator.h"
#include "tests/python/standin/memory.h"

namespace standin {
namespace {

namespace py = pybind11;

void sleep(double milliseconds) {
  const std::chrono::duration<double, std::milli> time(milliseconds);
  current_stream(current_device()).enqueue([time] { std::this_thread::sleep_for(time); });
}

py::dict counts_now() {
  const Counts& all = counts();
  py::dict result;
  result["copies_to_host"] = all.copies_to_host.load();
  result["copies_from_host"] = all.copies_from_host.load();
  result["copies_on_device"] = all.copies_on_device.load();
  result["blocking_copies"] = all.blocking_copies.load();
  result["events_recorded"] = all.events_recorded.load();
  result["syncs"] = all.syncs.load();
  result["pinned_allocations"] = all.pinned_allocations.load();
  result["kernels"] = all.kernels.load();
  result["fallbacks"] = all.fallbacks.load();
  return result;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  const py::call_guard<py::gil_scoped_release> without_gil;
  m.attr("devices") = kDevices;
  m.def("sleep", &sleep, without_gil);
  m.def("counts", &counts_now);
  m.def("pinned_bytes", &pinned_bytes);
  m.def("set_copy_rate", [](int64_t rate) { settings().copy_rate = rate; });
  m.def("set_jitter", [](int64_t microseconds) { settings().jitter_us = microseconds; });
  m.def("set_lenient", [](bool lenient) { settings().lenient = lenient; });
  m.def("fail_copies", &fail_copies);
  m.def("fail_copies_later", &fail_copies_later);
  m.def("heal", &heal, without_gil);
  m.def("default_generator", &default_generator);
}

}  // namespace
}  // namespace standin
