#include "src/bootstrap/secret.h"

#include <string>
#include <utility>

#include "src/base/random.h"
#include "src/base/small_file.h"
#include "src/net/key.h"

namespace hetcomm {
namespace {

constexpr size_t kMaxSecretBytes = 4096;

Result<std::string> read_secret_file(const std::string& path, Log& log) {
  const std::string what = "HETCOMM_SECRET_FILE '" + path + "'";
  Result<SmallFile> file = read_small_file(path, kMaxSecretBytes, what);
  if (!file.ok()) return file.status();
  if (file->everybody_reads) {
    log.warn("{}: everybody on this host can read it; use chmod 600", what);
  }
  std::string text = std::move(file->contents);
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
