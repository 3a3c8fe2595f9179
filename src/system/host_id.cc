#include "src/system/host_id.h"

#include <fcntl.h>
#include <unistd.h>

#include <cctype>

#include "src/system/unique_fd.h"

namespace hetcomm {
namespace {

// Reads the kernel's boot id, a UUID in text form.
HostId read_boot_id() {
  HostId id{};
  const UniqueFd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  std::array<char, 64> text{};
  const ssize_t size = file.valid() ? ::read(file.get(), text.data(), text.size()) : 0;
  size_t digits = 0;
  for (ssize_t i = 0; i < size && digits < 2 * id.size(); ++i) {
    const char c = text[static_cast<size_t>(i)];
    if (std::isxdigit(static_cast<unsigned char>(c)) == 0) continue;
    const int value = c <= '9' ? c - '0' : std::tolower(static_cast<unsigned char>(c)) - 'a' + 10;
    id[digits / 2] = (id[digits / 2] << 4) | static_cast<std::byte>(value);
    ++digits;
  }
  return id;
}

}  // namespace

HostId read_host_id() {
  static const HostId kId = read_boot_id();
  return kId;
}

}  // namespace hetcomm
