#include "devices/plugin/plugins.h"

#include <dlfcn.h>

#include <algorithm>

#include <fmt/core.h>

#include "devices/plugin/checked_device.h"
#include "src/base/lists.h"
#include "src/base/text.h"
#include "src/system/config.h"

namespace hetcomm {
namespace {

// Size of the struct's first version, which ends with create().
constexpr uint64_t kMinPluginBytes =
    offsetof(hetcomm_device_plugin_t, create) + sizeof(hetcomm_device_plugin_t::create);

// Loads the library |path| and returns its plug-in.
Result<const hetcomm_device_plugin_t*> open_plugin(const std::string& path) {
  const auto refusal = [&](const std::string& why) {
    return Status(Code::kUnsupported, fmt::format("{}: {}", printable(path), why));
  };
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const why = dlerror();
    return Status(Code::kNotFound, fmt::format("the plug-in cannot be loaded: {}",
                                               printable(why != nullptr ? why : path)));
  }
  void* const symbol = dlsym(library, HETCOMM_DEVICE_PLUGIN_FUNCTION);
  if (symbol == nullptr) {
    return refusal(
        fmt::format("it is no plug-in: it exports no {}()", HETCOMM_DEVICE_PLUGIN_FUNCTION));
  }
  const hetcomm_device_plugin_t* const plugin =
      reinterpret_cast<hetcomm_device_plugin_function_t>(symbol)();
  if (plugin == nullptr) return refusal("the plug-in says that it cannot be used here");
  if (plugin->struct_size < kMinPluginBytes) {
    return refusal(
        fmt::format("the plug-in's description has {} bytes, and the first version has {}: set "
                    "its struct_size",
                    plugin->struct_size, kMinPluginBytes));
  }
  if (plugin->version != HETCOMM_DEVICE_PLUGIN_VERSION) {
    return refusal(
        fmt::format("the plug-in is of version {}, and this library takes version {}: build it "
                    "with this library's hetcomm/device_plugin.h",
                    plugin->version, HETCOMM_DEVICE_PLUGIN_VERSION));
  }
  if (plugin->kind_count < 1 || plugin->kinds == nullptr || plugin->create == nullptr) {
    return refusal("the plug-in has no kinds or no create()");
  }
  return plugin;
}

}  // namespace

Result<Plugins> Plugins::load(std::string_view paths, const std::vector<std::string_view>& taken,
                              const std::function<void(std::string_view)>& on_load) {
  Plugins plugins;
  for (const std::string_view path : split_list(paths)) {
    on_load(path);
    HETCOMM_RETURN_IF_ERROR(plugins.add(std::string(path), taken));
  }
  return plugins;
}

Status Plugins::add(const std::string& path, const std::vector<std::string_view>& taken) {
  Result<const hetcomm_device_plugin_t*> opened = open_plugin(path);
  if (!opened.ok()) return opened.status();
  const hetcomm_device_plugin_t* const plugin = opened.value();
  for (int32_t i = 0; i < plugin->kind_count; ++i) {
    const char* const name = plugin->kinds[i];
    if (name == nullptr || !is_device_kind(name)) {
      return Status(Code::kUnsupported,
                    fmt::format("{}: kind {} of the plug-in has no name that can stand in "
                                "HETCOMM_DEVICES: '{}'",
                                printable(path), i, printable(name != nullptr ? name : "")));
    }
    const Kind* const other = find(name);
    if (other != nullptr || std::find(taken.begin(), taken.end(), name) != taken.end()) {
      return Status(Code::kInvalidArgument,
                    fmt::format("{}: the kind '{}' is {}'s already", printable(path), name,
                                other != nullptr ? printable(other->path) : "this library"));
    }
    kinds_.push_back({name, path, plugin});
  }
  return {};
}

const Plugins::Kind* Plugins::find(std::string_view kind) const {
  for (const Kind& each : kinds_) {
    if (each.name == kind) return &each;
  }
  return nullptr;
}

std::vector<std::string> Plugins::kinds() const {
  std::vector<std::string> names;
  for (const Kind& kind : kinds_) names.push_back(kind.name);
  return names;
}

template <typename Make>
Result<Device> Plugins::make_checked(const Kind& kind, const Make& make) {
  const auto refusal = [&](Code code, std::string_view why) {
    return Status(code, fmt::format("{} of {}: {}", kind.name, printable(kind.path), why));
  };
  Text text{};
  Device device{};
  const hetcomm_status_t status = make(&device, &text);
  if (status != HETCOMM_OK) {
    text.back() = '\0';
    if (!may_fail_with(status)) {
      return refusal(Code::kInternal,
                     fmt::format("the plug-in returned {} ({}) and no device, which it must not",
                                 status, code_name(static_cast<Code>(status))));
    }
    const auto code = static_cast<Code>(status);
    return refusal(code,
                   text.front() != '\0' ? printable(text.data()) : std::string(code_text(code)));
  }
  const Result<DeviceTable> table = complete_table(device.table);
  if (!table.ok()) {
    constexpr uint64_t kBytes = offsetof(DeviceTable, destroy) + sizeof(DeviceTable::destroy);
    if (device.table != nullptr && device.table->struct_size >= kBytes &&
        device.table->destroy != nullptr) {
      device.table->destroy(device.instance);
    }
    return refusal(table.status().code(), table.status().text());
  }
  if (kind.name != table.value().kind) {
    device.table->destroy(device.instance);
    return refusal(Code::kUnsupported,
                   fmt::format("the plug-in made a device of kind '{}'", table.value().kind));
  }
  return device;
}

Result<Device> Plugins::create(std::string_view kind, std::string_view options) const {
  const Kind& known = *find(kind);
  return make_checked(known, [&](Device* device, Text* text) {
    return known.plugin->create(known.name.c_str(), std::string(options).c_str(), device,
                                text->data(), text->size());
  });
}

Result<Device> Plugins::create_from_native(std::string_view kind, void* native) const {
  const Kind& known = *find(kind);
  constexpr uint64_t kBytes = offsetof(hetcomm_device_plugin_t, create_from_native) +
                              sizeof(hetcomm_device_plugin_t::create_from_native);
  if (known.plugin->struct_size < kBytes || known.plugin->create_from_native == nullptr) {
    return Status(Code::kUnsupported,
                  fmt::format("{} of {} makes devices from HETCOMM_DEVICES only", known.name,
                              printable(known.path)));
  }
  return make_checked(known, [&](Device* device, Text* text) {
    return known.plugin->create_from_native(known.name.c_str(), native, device, text->data(),
                                            text->size());
  });
}

}  // namespace hetcomm
