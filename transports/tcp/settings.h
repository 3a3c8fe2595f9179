// Settings holds the configuration of the tcp transport, after its values were checked and clamped.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/system/config.h"
#include "transports/transport.h"

namespace hetcomm::tcp {

struct Settings {
  size_t streams = 1;         // bulk streams opened initially
  bool auto_streams = false;  // more bulk streams are opened if measurements justify them
  uint32_t chunk = 0;
  int socket_buffer = 0;  // 0: the kernel's choice
  uint64_t detection_ns = 0;
  Capabilities capabilities;
};
Settings read_settings(const Config& config, bool tls);

}  // namespace hetcomm::tcp
