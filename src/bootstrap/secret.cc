#include "src/bootstrap/secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include <fmt/format.h>

#include "src/base/random.h"
#include "src/base/unique_fd.h"
#include "src/net/key.h"

namespace hetcomm {
namespace {

constexpr size_t kMaxSecretBytes = 4096;

Result<std::string> read_secret_file(const std::string& path, Log& log) {
  const std::string what = "HETCOMM_SECRET_FILE '" + path + "'";
  // Without blocking, in case it is a pipe that nobody writes.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat info {};
  if (!file.valid() || ::fstat(file.get(), &info) != 0) return status_from_errno(errno, what);
  if (!S_ISREG(info.st_mode)) return Status(Code::kInvalidArgument, what + ": not a file");
  if ((info.st_mode & S_IWOTH) != 0) {
    return Status(Code::kPermissionDenied, what + ": everybody can write it; use chmod 600");
  }
  if ((info.st_mode & S_IROTH) != 0) {
    log.warn("{}: everybody on this host can read it; use chmod 600", what);
  }
  std::string text(kMaxSecretBytes + 1, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return status_from_errno(errno, what);
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  if (size > kMaxSecretBytes) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{}: more than {} bytes", what, kMaxSecretBytes));
  }
  text.resize(size);
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  if (text.empty()) return Status(Code::kInvalidArgument, what + ": it is empty");
  return text;
}

}  // namespace

Result<std::optional<Secret>> configured_secret(const Config& config, Log& log) {
  std::string secret(config.text(Variable::kSecret));
  if (secret.empty()) {
    const std::string path(config.text(Variable::kSecretFile));
    if (path.empty()) return std::optional<Secret>();
    Result<std::string> contents = read_secret_file(path, log);
    if (!contents.ok()) return contents.status();
    secret = std::move(contents).value();
  }
  return std::optional<Secret>(secret_from(std::as_bytes(std::span(secret))));
}

Result<Secret> random_secret() {
  Secret secret{};
  HETCOMM_RETURN_IF_ERROR(fill_random(secret));
  return secret;
}

}  // namespace hetcomm
