#include "src/capi/device_list.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "devices/plugin/checked_device.h"
#include "devices/plugin/plugins.h"
#include "devices/registry.h"
#include "devices/variables.h"
#include "src/base/lists.h"
#include "src/base/text.h"
#include "src/bootstrap/launch.h"

namespace hetcomm::capi {
namespace {

const std::vector<std::string_view> kOwnKinds = {"host",
#ifdef HETCOMM_HAS_OPENCL
                                                 "opencl",
#endif
                                                 "sim-handle", "sim-address"};

Status unknown_kind(Code code, std::string_view kind, const Plugins& plugins) {
  std::vector<std::string> known(kOwnKinds.begin() + 1, kOwnKinds.end());
  for (std::string& each : plugins.kinds()) known.push_back(std::move(each));
  return Status(code, fmt::format("'{}' is no kind of device; there are {}; HETCOMM_DEVICE_PLUGINS "
                                  "names libraries that bring others",
                                  printable(kind), fmt::join(known, ", ")));
}

// Wraps the device |made|, which comes from a plug-in, so that its calls are checked. Destroys the
// device on failure.
Result<Device> checked(Result<Device> made) {
  if (!made.ok()) return made;
  Result<Device> device = make_checked_device(*made);
  if (!device.ok()) made->table->destroy(made->instance);
  return device;
}

// Creates a device from an item like "sim-handle" or "sim-address:bandwidth=10G:latency=2us".
Result<Device> make_device(std::string_view item, const Plugins& plugins) {
  const size_t colon = item.find(':');
  const std::string_view kind = item.substr(0, colon);
  const std::string_view options =
      colon == std::string_view::npos ? std::string_view() : item.substr(colon + 1);
  if (plugins.has(kind)) return checked(plugins.create(kind, options));
  if (kind == "host") {
    return Status(Code::kInvalidArgument, "the host is always device 0: leave it out");
  }
  if (!is_own_kind(kind)) return unknown_kind(Code::kInvalidArgument, kind, plugins);
#ifdef HETCOMM_HAS_OPENCL
  if (kind == "opencl") return create_opencl_device(options);
#endif
  return create_sim_device(kind, options);
}

// Replaces each "{local_rank}" in |names| by this process's local rank.
Result<std::string> fill_in_local_rank(std::string_view names) {
  constexpr std::string_view kPlaceholder = "{local_rank}";
  std::string filled(names);
  size_t at = filled.find(kPlaceholder);
  if (at == std::string::npos) return filled;
  const std::optional<int> local = launched_local_rank();
  if (!local) {
    return Status(Code::kInvalidArgument,
                  "{local_rank} stands there, and no launcher says which rank of its host this "
                  "process is: set LOCAL_RANK");
  }
  for (; at != std::string::npos; at = filled.find(kPlaceholder, at)) {
    filled.replace(at, kPlaceholder.size(), std::to_string(*local));
  }
  return filled;
}

Result<Plugins> load_plugins(const Config& config, Log& log) {
  Result<Plugins> plugins = Plugins::load(
      config.text(variable::kDevicePlugins), kOwnKinds,
      [&](std::string_view path) { log.info("loading the plug-in {}", printable(path)); });
  if (!plugins.ok()) return plugins.status().annotate("HETCOMM_DEVICE_PLUGINS");
  return plugins;
}

}  // namespace

bool is_own_kind(std::string_view kind) {
  return std::find(kOwnKinds.begin(), kOwnKinds.end(), kind) != kOwnKinds.end();
}

DeviceList::~DeviceList() {
  for (const Device& device : devices_) device.table->destroy(device.instance);
}

Status DeviceList::make(const Config& config, Log& log) {
  const auto add = [&](Result<Device> device) -> Status {
    if (!device.ok()) return device.status();
    try {
      devices_.push_back(device.value());
    } catch (const std::bad_alloc&) {
      device->table->destroy(device->instance);
      throw;
    }
    return {};
  };
  HETCOMM_RETURN_IF_ERROR(add(create_host_device()));
  Result<Plugins> plugins = load_plugins(config, log);
  if (!plugins.ok()) return plugins.status();
  Result<std::string> names = fill_in_local_rank(config.text(variable::kDevices));
  if (!names.ok()) return names.status().annotate("HETCOMM_DEVICES");
  for (const std::string_view item : split_list(*names)) {
    const Status made = add(make_device(item, *plugins));
    if (!made.ok()) return made.annotate("HETCOMM_DEVICES");
  }
  return {};
}

Result<Device> make_native_device(std::string_view kind, void* native, const Config& config,
                                  Log& log) {
#ifdef HETCOMM_HAS_OPENCL
  if (kind == "opencl") return create_opencl_device_from(native);
#endif
  if (is_own_kind(kind)) {
    return Status(Code::kUnsupported, fmt::format("{} is made from HETCOMM_DEVICES only", kind));
  }
  Result<Plugins> plugins = load_plugins(config, log);
  if (!plugins.ok()) return plugins.status();
  if (!plugins->has(kind)) return unknown_kind(Code::kNotFound, kind, *plugins);
  return checked(plugins->create_from_native(kind, native));
}

}  // namespace hetcomm::capi
