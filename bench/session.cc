#include "bench/session.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>

namespace bench {
namespace {

// The kinds that are no host, as HETCOMM_DEVICES, in addition to what stands there.
std::string device_settings(const std::vector<std::string>& kinds) {
  std::string devices = is_set("HETCOMM_DEVICES") ? std::getenv("HETCOMM_DEVICES") : "";
  for (const std::string& kind : kinds) {
    if (kind == "host" || devices.find(kind) != std::string::npos) continue;
    devices += (devices.empty() ? "" : ",") + kind;
  }
  return devices.empty() ? "" : "HETCOMM_DEVICES=" + devices;
}

// The store takes one of 16 ports from MASTER_PORT on; the next session's begins after them.
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
  std::fprintf(stderr, "hetcomm_bench: %s\n", text.c_str());
  std::fflush(nullptr);
  // No destructors: they would wait for peers that may be gone.
  _exit(1);
}

void require(hetcomm_status_t status, const char* what) {
  if (status == HETCOMM_OK) return;
  const char* detail = hetcomm_last_error();
  fail(fmt::format("{}: {}: {}", what, hetcomm_status_name(status),
                   *detail != '\0' ? detail : hetcomm_status_text(status)));
}

Session::Session(Launcher launcher, int number, const Work& work,
                 const std::vector<std::string>& kinds, std::string settings) {
  if (const std::string devices = device_settings(kinds); !devices.empty()) {
    settings += (settings.empty() ? "" : ";") + devices;
  }
  const auto set = [&](const char* name, uint64_t value) {
    if (value == 0) return;
    settings += fmt::format("{}{}={}", settings.empty() ? "" : ";", name, value);
  };
  set("HETCOMM_STAGING_CHUNK", work.staging_chunk);
  set("HETCOMM_STAGING_DEPTH", static_cast<uint64_t>(work.staging_depth));
  set("HETCOMM_RAILS", static_cast<uint64_t>(work.rails));
  hetcomm_context_options_t options{};
  options.struct_size = sizeof options;
  options.progress = progress_option(work.progress);
  options.settings = settings.empty() ? nullptr : settings.c_str();
  require(hetcomm_context_create(&options, &context_), "creating the context");
  start_bootstrap(launcher, number);
}

Session::~Session() {
  hetcomm_bootstrap_destroy(bootstrap_);
  require(hetcomm_context_destroy(context_), "destroying the context");
}

int32_t Session::find_device(const std::string& kind) const {
  if (kind == "host") return HETCOMM_DEVICE_HOST;
  int32_t count = 0;
  require(hetcomm_device_count(context_, &count), "counting the devices");
  for (int32_t index = 0; index < count; ++index) {
    hetcomm_device_info_t info{.struct_size = sizeof(info)};
    require(hetcomm_device_get_info(context_, index, &info), "asking for a device");
    if (kind == info.kind) return index;
  }
  fail(fmt::format("there is no device of kind '{}'; HETCOMM_DEVICES may add one", kind));
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

}  // namespace bench
