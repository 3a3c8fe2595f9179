#include "src/bootstrap/secret.h"

#include <atomic>
#include <string>
#include <utility>

#include <fmt/core.h>

#include "src/bootstrap/variables.h"
#include "src/net/hash.h"
#include "src/net/key.h"
#include "src/net/tls.h"
#include "src/system/small_file.h"

namespace hetcomm {
namespace {

constexpr size_t kMaxSecretBytes = 4096;
constexpr size_t kMinSecretBytes = 16;

// Warns once per process.
void warn_of_short_secret(size_t bytes, Log& log) {
  static std::atomic<bool> said = false;
  if (bytes >= kMinSecretBytes || !log.enabled(LogLevel::kWarn) || said.exchange(true)) return;
  log.warn(
      "the job secret has {} bytes and may be guessed; use {} random ones or more, such as "
      "`openssl rand -hex 32`",
      bytes, kMinSecretBytes);
}

Result<std::string> read_secret_file(const std::string& path, Log& log) {
  const std::string what = "HETCOMM_SECRET_FILE '" + path + "'";
  Result<SmallFile> file = read_private_file(path, kMaxSecretBytes, what);
  if (!file.ok()) return file.status();
  if (file->everybody_reads) {
    log.warn("{}: every user of this host may read it; use chmod 600", what);
  }
  std::string text = std::move(file->contents);
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  if (text.empty()) return Status(Code::kInvalidArgument, what + ": it is empty");
  return text;
}

}  // namespace

Result<std::optional<Secret>> configured_secret(const Config& config, Log& log) {
  std::string secret(config.text(variable::kSecret));
  if (secret.empty()) {
    const std::string path(config.text(variable::kSecretFile));
    if (path.empty()) return std::optional<Secret>();
    Result<std::string> contents = read_secret_file(path, log);
    if (!contents.ok()) return contents.status();
    secret = std::move(contents).value();
  }
  warn_of_short_secret(secret.size(), log);
  const Secret key = secret_from(std::as_bytes(std::span(secret)));
  wipe(std::as_writable_bytes(std::span(secret)));
  return std::optional<Secret>(key);
}

Status allow_without_secret(const Config& config, Log& log, int rank, int size,
                            KeyChannel channel) {
  if (size == 1) return {};
  constexpr std::string_view kHowToSetIt =
      "set HETCOMM_SECRET_FILE or HETCOMM_SECRET, alike on all ranks";
  if (config.is_on(variable::kRequireSecret)) {
    return Status(
        Code::kPermissionDenied,
        fmt::format("HETCOMM_REQUIRE_SECRET is set and there is no job secret: {}", kHowToSetIt));
  }
  if (tls_required(config) && channel == KeyChannel::kCallbacks) {
    return Status(Code::kPermissionDenied,
                  fmt::format("HETCOMM_REQUIRE_TLS is set and there is no job secret: without one "
                              "the ranks' key would go in clear through the caller's exchange "
                              "(PyTorch's store, MPI): {}",
                              kHowToSetIt));
  }
  if (rank != 0 || (tls_wanted(config) && channel == KeyChannel::kStore)) return {};
  // The warning appears only once, since a process may create many communicators.
  static std::atomic<bool> said = false;
  if (log.enabled(LogLevel::kWarn) && !said.exchange(true)) {
    log.warn(
        "this job has no secret: anyone who reaches its ports can join it and use the memory "
        "that its ranks expose; {} (see docs/security.md)",
        kHowToSetIt);
  }
  return {};
}

}  // namespace hetcomm
