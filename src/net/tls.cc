// Implements TlsContext, which holds keys, certificates, and the state that all sessions share.
#include "src/net/tls.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include "src/net/variables.h"
#include "src/system/small_file.h"

namespace hetcomm {
namespace {

constexpr size_t kMaxPemBytes = 1u << 20;
// The first cipher is strong enough, and the fastest if the processor has AES instructions.
constexpr const char* kCiphers =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using BioPtr = std::unique_ptr<BIO, Freer<BIO_free_all>>;
using X509Ptr = std::unique_ptr<X509, Freer<X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;

// Returns the text of OpenSSL's latest error.
std::string library_text() {
  const unsigned long error = ERR_peek_last_error();
  const char* reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  ERR_clear_error();
  return reason == nullptr ? "unknown error of the TLS library" : reason;
}

std::string named(const char* variable, const std::string& path) {
  return fmt::format("{} '{}'", variable, path);
}

BioPtr memory_bio(const std::string& text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Replaces OpenSSL's own callback, which would prompt on the terminal.
int no_pass_phrase(char*, int, int, void*) { return -1; }

int bio_write(BIO* bio, const char* data, int size) {
  BIO_clear_retry_flags(bio);
  return static_cast<TlsSession*>(BIO_get_data(bio))->put(data, size);
}

int bio_read(BIO* bio, char* data, int size) {
  BIO_clear_retry_flags(bio);
  const int got = static_cast<TlsSession*>(BIO_get_data(bio))->take(data, size);
  if (got < 0 && errno == EAGAIN) BIO_set_retry_read(bio);
  return got;
}

// A flush always succeeds, because the session itself sends the data that put() keeps.
long bio_control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

}  // namespace

bool tls_wanted(const Config& config) { return config.is_on(variable::kTls); }
bool tls_required(const Config& config) { return config.is_on(variable::kRequireTls); }

Result<std::shared_ptr<const TlsContext>> TlsContext::create(const Config& config, Log& log) {
  if (!tls_wanted(config)) {
    if (!tls_required(config)) return std::shared_ptr<const TlsContext>();
    return Status(Code::kInvalidArgument,
                  "HETCOMM_REQUIRE_TLS is set and HETCOMM_TLS is off: set HETCOMM_TLS=on with "
                  "HETCOMM_TLS_CERTIFICATE, HETCOMM_TLS_KEY and HETCOMM_TLS_CA");
  }
  std::shared_ptr<TlsContext> context(new TlsContext());
  ERR_clear_error();
  HETCOMM_RETURN_IF_ERROR(context->load(config, log));
  return std::shared_ptr<const TlsContext>(std::move(context));
}

TlsContext::~TlsContext() {
  SSL_CTX_free(context_);
  BIO_meth_free(method_);
}

Status TlsContext::load(const Config& config, Log& log) {
  for (const Variable* each : {&variable::kTlsCertificate, &variable::kTlsKey, &variable::kTlsCa}) {
    if (config.text(*each).empty()) {
      return Status(
          Code::kInvalidArgument,
          fmt::format("HETCOMM_TLS is on, but {} is not set; set it to a PEM file", each->name));
    }
  }
  expected_name_ = config.text(variable::kTlsServerName);
  context_ = SSL_CTX_new(TLS_method());
  method_ = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "hetcomm socket");
  if (context_ == nullptr || method_ == nullptr || BIO_meth_set_write(method_, bio_write) != 1 ||
      BIO_meth_set_read(method_, bio_read) != 1 || BIO_meth_set_ctrl(method_, bio_control) != 1) {
    return Status(Code::kOutOfMemory, "TLS: " + library_text());
  }
  SSL_CTX_set_verify(context_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_session_cache_mode(context_, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context_, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET);
  SSL_CTX_set_mode(context_, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_default_passwd_cb(context_, no_pass_phrase);
  if (SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context_, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context_, kCiphers) != 1 ||
      SSL_CTX_set_num_tickets(context_, 0) != 1) {
    return Status(Code::kUnsupported, "TLS: " + library_text());
  }
  HETCOMM_RETURN_IF_ERROR(
      load_certificate(std::string(config.text(variable::kTlsCertificate)), log));
  HETCOMM_RETURN_IF_ERROR(load_key(std::string(config.text(variable::kTlsKey)), log));
  return load_authority(std::string(config.text(variable::kTlsCa)), log);
}

Status TlsContext::load_certificate(const std::string& path, Log& /*log*/) {
  const std::string what = named("HETCOMM_TLS_CERTIFICATE", path);
  Result<SmallFile> file = read_small_file(path, kMaxPemBytes, what);
  if (!file.ok()) return file.status();
  const BioPtr bio = memory_bio(file->contents);
  const X509Ptr own(PEM_read_bio_X509(bio.get(), nullptr, no_pass_phrase, nullptr));
  if (!own || SSL_CTX_use_certificate(context_, own.get()) != 1) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{}: it holds no usable certificate: {}", what, library_text()));
  }
  while (X509* between = PEM_read_bio_X509(bio.get(), nullptr, no_pass_phrase, nullptr)) {
    if (SSL_CTX_add0_chain_cert(context_, between) != 1) {
      X509_free(between);
      return Status(Code::kInvalidArgument, fmt::format("{}: {}", what, library_text()));
    }
  }
  ERR_clear_error();
  // Peers would reject an expired certificate. Failing here reports it earlier and names the file.
  if (X509_cmp_current_time(X509_get0_notAfter(own.get())) < 0) {
    return Status(Code::kPermissionDenied, fmt::format("{}: the certificate has expired", what));
  }
  return {};
}

Status TlsContext::load_key(const std::string& path, Log& log) {
  const std::string what = named("HETCOMM_TLS_KEY", path);
  Result<SmallFile> file = read_private_file(path, kMaxPemBytes, what);
  if (!file.ok()) return file.status();
  if (file->everybody_reads) {
    log.warn_once(fmt::format("{}: every user of this host may read it; use chmod 600", what));
  }
  const BioPtr bio = memory_bio(file->contents);
  const KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_pass_phrase, nullptr));
  OPENSSL_cleanse(file->contents.data(), file->contents.size());
  if (!key) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("{}: it holds no usable private key (one with a pass phrase is not): {}", what,
                    library_text()));
  }
  if (SSL_CTX_use_PrivateKey(context_, key.get()) != 1 ||
      SSL_CTX_check_private_key(context_) != 1) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("{}: the key does not belong to the certificate in HETCOMM_TLS_CERTIFICATE: {}",
                    what, library_text()));
  }
  return {};
}

Status TlsContext::load_authority(const std::string& path, Log& /*log*/) {
  const std::string what = named("HETCOMM_TLS_CA", path);
  Result<SmallFile> file = read_small_file(path, kMaxPemBytes, what);
  if (!file.ok()) return file.status();
  const BioPtr bio = memory_bio(file->contents);
  X509_STORE* store = SSL_CTX_get_cert_store(context_);
  size_t count = 0;
  while (true) {
    const X509Ptr authority(PEM_read_bio_X509(bio.get(), nullptr, no_pass_phrase, nullptr));
    if (!authority) break;
    if (X509_STORE_add_cert(store, authority.get()) != 1) {
      return Status(Code::kInvalidArgument, fmt::format("{}: {}", what, library_text()));
    }
    ++count;
  }
  if (count == 0) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{}: it holds no certificate: {}", what, library_text()));
  }
  ERR_clear_error();
  return {};
}

std::unique_ptr<TlsSession> TlsContext::open(int fd, bool accepts) const {
  std::unique_ptr<TlsSession> session(new TlsSession(shared_from_this(), fd));
  session->ssl_ = SSL_new(context_);
  BioPtr bio(BIO_new(method_));
  if (session->ssl_ == nullptr || !bio) return nullptr;
  SSL* ssl = session->ssl_;
  if (!expected_name_.empty()) {
    X509_VERIFY_PARAM* parameters = SSL_get0_param(ssl);
    X509_VERIFY_PARAM_set_hostflags(parameters, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    if (X509_VERIFY_PARAM_set1_ip_asc(parameters, expected_name_.c_str()) != 1 &&
        X509_VERIFY_PARAM_set1_host(parameters, expected_name_.c_str(), expected_name_.size()) !=
            1) {
      return nullptr;
    }
    ERR_clear_error();
  }
  BIO_set_data(bio.get(), session.get());
  BIO_set_init(bio.get(), 1);
  BIO* socket = bio.release();
  SSL_set_bio(ssl, socket, socket);
  if (accepts) {
    SSL_set_accept_state(ssl);
  } else {
    SSL_set_connect_state(ssl);
  }
  return session;
}

}  // namespace hetcomm
