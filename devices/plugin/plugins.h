// Plugins loads kinds of devices from shared libraries (hetcomm/device_plugin.h).
//
// A loaded library stays loaded until the process ends, since a vendor's threads may run in it.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "devices/device.h"
#include "src/base/status.h"

namespace hetcomm {

class Plugins {
 public:
  // Loads the shared libraries in the comma-separated list |paths|. None may provide one of the
  // |taken| kinds. on_load(path) is called before a library's code runs, so that a crash can be
  // attributed to the library. The text of a failure names the library. [any-thread]
  static Result<Plugins> load(std::string_view paths, const std::vector<std::string_view>& taken,
                              const std::function<void(std::string_view)>& on_load);

  bool has(std::string_view kind) const { return find(kind) != nullptr; }
  std::vector<std::string> kinds() const;
  // Creates a device of |kind|, which is one of kinds(). The caller destroys it.
  Result<Device> create(std::string_view kind, std::string_view options) const;
  // Creates a device from a framework's object. UNSUPPORTED: the plug-in cannot create devices from
  // objects.
  Result<Device> create_from_native(std::string_view kind, void* native) const;

 private:
  struct Kind {
    std::string name;
    std::string path;
    const hetcomm_device_plugin_t* plugin;
  };
  using Text = std::array<char, 512>;
  const Kind* find(std::string_view kind) const;
  // Calls |make|(&device, &text). Returns the device if it is valid and of |kind|.
  template <typename Make>
  static Result<Device> make_checked(const Kind& kind, const Make& make);
  Status add(const std::string& path, const std::vector<std::string_view>& taken);

  std::vector<Kind> kinds_;
};

}  // namespace hetcomm
