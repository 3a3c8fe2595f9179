#include "tools/common/session.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tools {
namespace {

// Returns the index in |devices| of |wanted|, which is a kind or a device as in HETCOMM_DEVICES.
// Returns nullopt if there is no such device.
std::optional<size_t> index_of(const std::vector<std::string>& devices, const std::string& wanted) {
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i] == wanted) return i;
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].substr(0, devices[i].find(':')) == wanted) return i;
  }
  return std::nullopt;
}

// Returns the devices in HETCOMM_DEVICES, and those in |wanted| that it lacks, except "host".
std::vector<std::string> devices_for(const std::vector<std::string>& wanted) {
  std::vector<std::string> devices;
  std::istringstream items(is_set("HETCOMM_DEVICES") ? std::getenv("HETCOMM_DEVICES") : "");
  for (std::string item; std::getline(items, item, ',');) {
    if (!item.empty()) devices.push_back(item);
  }
  for (const std::string& each : wanted) {
    if (each != "host" && !index_of(devices, each)) devices.push_back(each);
  }
  return devices;
}

// Moves MASTER_PORT past the ports of earlier sessions. A store uses one of 17 ports, starting at
// MASTER_PORT.
void move_master_port(int number) {
  constexpr int kPortsOfOneStore = 17;
  static const int first = is_set("MASTER_PORT") ? std::atoi(std::getenv("MASTER_PORT")) : 0;
  if (first == 0 || number == 0) return;
  setenv("MASTER_PORT", std::to_string(first + number * kPortsOfOneStore).c_str(), 1);
}

int32_t progress_option(const std::string& progress) {
  if (progress == "caller") return HETCOMM_PROGRESS_CALLER;
  return progress == "thread" ? HETCOMM_PROGRESS_THREAD : HETCOMM_PROGRESS_DEFAULT;
}

}  // namespace

void fail(const std::string& text) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, text.c_str());
  std::fflush(nullptr);
  // Skips destructors, since they would wait for peers that may have exited.
  _exit(1);
}

void require(hetcomm_status_t status, const char* what) {
  if (status == HETCOMM_OK) return;
  const char* detail = hetcomm_last_error();
  fail(fmt::format("{}: {}: {}", what, hetcomm_status_name(status),
                   *detail != '\0' ? detail : hetcomm_status_text(status)));
}

void fail(const hetcomm_completion_t& completion) {
  fail(fmt::format("{}: {}", hetcomm_status_name(completion.status),
                   completion.text != nullptr && *completion.text != '\0'
                       ? completion.text
                       : hetcomm_status_text(completion.status)));
}

double largest(hetcomm_communicator_t* communicator, double own) {
  double result = 0;
  hetcomm_request_t* request = nullptr;
  require(hetcomm_allreduce(communicator, hetcomm_buffer_host(&own, sizeof(own)),
                            hetcomm_buffer_host(&result, sizeof(result)), HETCOMM_FLOAT64,
                            HETCOMM_REDUCE_MAX, nullptr, &request),
          "comparing times");
  wait(request);
  return result;
}

Session::Session(Launcher launcher, int number, const SessionOptions& options)
    : devices_(devices_for(options.devices)) {
  std::string settings = options.settings;
  if (!devices_.empty()) {
    settings +=
        fmt::format("{}HETCOMM_DEVICES={}", settings.empty() ? "" : ";", fmt::join(devices_, ","));
  }
  hetcomm_context_options_t wishes{};
  wishes.struct_size = sizeof wishes;
  wishes.progress = progress_option(options.progress);
  wishes.settings = settings.empty() ? nullptr : settings.c_str();
  require(hetcomm_context_create(&wishes, &context_), "creating the context");
  start_bootstrap(launcher, number);
}

Session::~Session() {
  hetcomm_bootstrap_destroy(bootstrap_);
  require(hetcomm_context_destroy(context_), "destroying the context");
}

int32_t Session::find_device(const std::string& name) const {
  if (name == "host") return HETCOMM_DEVICE_HOST;
  const auto index = index_of(devices_, name);
  if (!index) fail(fmt::format("there is no device '{}'; HETCOMM_DEVICES may add one", name));
  return static_cast<int32_t>(*index) + 1;
}

void Session::start_bootstrap(Launcher launcher, int number) {
  if (launcher != Launcher::kMpi) move_master_port(number);
  const std::string failure = create_bootstrap(launcher, context_, &bootstrap_);
  if (!failure.empty()) fail(failure);
  require(hetcomm_bootstrap_rank(bootstrap_, &rank_, &ranks_), "asking for the rank");
}

hetcomm_communicator_t* Session::create_communicator(const std::string& name,
                                                     const std::string& transport,
                                                     uint64_t timeout_ns) {
  hetcomm_communicator_options_t options{};
  options.struct_size = sizeof options;
  options.name = name.c_str();
  options.transports = transport == "auto" ? nullptr : transport.c_str();
  options.timeout_ns = timeout_ns;
  hetcomm_communicator_t* communicator = nullptr;
  require(hetcomm_communicator_create(context_, bootstrap_, &options, &communicator),
          "creating the communicator");
  return communicator;
}

void Session::destroy_communicator(hetcomm_communicator_t* communicator) {
  require(hetcomm_communicator_destroy(communicator), "destroying the communicator");
}

}  // namespace tools
