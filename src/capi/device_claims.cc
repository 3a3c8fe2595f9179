#include "src/capi/device_claims.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <string>

#include <fmt/core.h>

#include "src/base/text.h"

namespace hetcomm::capi {
namespace {

// Fills in the abstract socket address that claims the device at |pci_address|. Returns its length.
socklen_t fill_address(const char* pci_address, sockaddr_un* out_address) {
  const std::string name = fmt::format("hetcomm-device-{}", pci_address);
  out_address->sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof(out_address->sun_path) - 1);
  name.copy(out_address->sun_path + 1, length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

// Returns the id of the process that has claimed |address|, or 0 if it is unknown.
pid_t owner_of(const sockaddr* address, socklen_t length) {
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  ucred owner{};
  socklen_t size = sizeof(owner);
  if (socket.get() < 0 || connect(socket.get(), address, length) != 0 ||
      getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &owner, &size) != 0) {
    return 0;
  }
  return owner.pid;
}

}  // namespace

void DeviceClaims::claim(const Device& device, Log& log) {
  const DeviceTable& table = *device.table;
  const char* const pci_address = table.pci_address ? table.pci_address(device.instance) : nullptr;
  if (pci_address == nullptr) return;
  sockaddr_un unix_address{};
  const socklen_t length = fill_address(pci_address, &unix_address);
  const auto* const address = reinterpret_cast<const sockaddr*>(&unix_address);
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0) return;
  if (bind(socket.get(), address, length) == 0 && listen(socket.get(), 1) == 0) {
    const std::lock_guard lock(mutex_);
    claims_.push_back(std::move(socket));
    return;
  }
  if (errno != EADDRINUSE) return;
  const pid_t owner = owner_of(address, length);
  if (owner == 0 || owner == getpid()) return;
  log.warn(
      "the device at {} ({}) is also used by process {} of this host: HETCOMM_DEVICES gives each "
      "rank a device of its own by {{local_rank}}, as in {}:{{local_rank}}",
      printable(pci_address), printable(name_of(device)), owner, table.kind);
}

}  // namespace hetcomm::capi
