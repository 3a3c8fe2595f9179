// Implements TlsSession, which moves TLS records between OpenSSL and the socket.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <system_error>

#include <fmt/core.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "src/net/stream_socket.h"
#include "src/net/tls.h"

namespace hetcomm {
namespace {

constexpr size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
// The records of one send() go to the kernel in batches of about this size.
constexpr size_t kBatchBytes = 128u << 10;
// The limit of unsent bytes. One call leaves far fewer: the records of a handshake, or kBatchBytes
// plus one record.
constexpr size_t kMaxKept = 1u << 20;
// Every message of the plain protocol starts with this byte (handshake.cc); no TLS record does.
constexpr char kFirstOfPlain = '\x89';

// A fatal alert "protocol version". It is sent to a process without TLS, which recognizes it.
constexpr unsigned char kAlert[] = {SSL3_RT_ALERT,          3, 3, 0, 2, SSL3_AL_FATAL,
                                    SSL_AD_PROTOCOL_VERSION};

bool means_full(int error) { return error == EAGAIN || error == ENOBUFS || error == EINTR; }

std::string error_text(int error) { return std::generic_category().message(error); }

bool is_about_certificates(int alert) {
  switch (alert) {
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_REVOKED:
    case SSL_AD_CERTIFICATE_EXPIRED:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_UNKNOWN_CA:
    case SSL_AD_CERTIFICATE_REQUIRED:
    case SSL_AD_ACCESS_DENIED:
    case SSL_AD_DECRYPT_ERROR:  // another authority with the same name
      return true;
    default:
      return false;
  }
}

}  // namespace

TlsSession::~TlsSession() { SSL_free(ssl_); }

// --- the socket's side -------------------------------------------------------------------------

// Accepts all bytes and keeps those that the kernel does not accept now. A broken socket is not
// reported to OpenSSL as a failure, because OpenSSL would then refuse to read. Data that the peer
// sent before the connection broke is still delivered.
int TlsSession::put(const char* data, int size) {
  const size_t length = static_cast<size_t>(size);
  size_t sent = 0;
  if (write_error_ != 0) return size;
  if (flushed() && !gathers_) {
    const ssize_t result = ::send(fd_, data, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (result >= 0) {
      sent = static_cast<size_t>(result);
    } else if (!means_full(errno)) {
      write_error_ = errno;
      return size;
    }
  }
  if (sent == length) return size;
  if (out_.size() - out_done_ + length - sent > kMaxKept) {
    write_error_ = ENOBUFS;
    return size;
  }
  out_.insert(out_.end(), data + sent, data + length);
  return size;
}

int TlsSession::take(char* data, int size) {
  took_all_ = false;
  ssize_t got = 0;
  do {
    got = ::recv(fd_, data, static_cast<size_t>(size), MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got > 0) {
    took_all_ = got == size;
    if (!peer_spoke_ && data[0] == kFirstOfPlain) plain_peer_ = true;
    peer_spoke_ = true;
    if (!plain_peer_) return static_cast<int>(got);
    errno = EPROTO;
    return -1;
  }
  if (got == 0) {
    kernel_end_ = true;
  } else if (errno != EAGAIN) {
    kernel_error_ = errno;
  }
  return static_cast<int>(got);
}

bool TlsSession::flush() {
  while (!flushed() && write_error_ == 0) {
    const ssize_t sent =
        ::send(fd_, out_.data() + out_done_, out_.size() - out_done_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      out_done_ += static_cast<size_t>(sent);
    } else if (errno == EINTR) {
      continue;
    } else if (means_full(errno)) {
      errno = EAGAIN;
      return false;
    } else {
      write_error_ = errno;
    }
  }
  out_.clear();
  out_done_ = 0;
  return true;
}

// Returns whether a write has failed and the failure must be reported. It is reported only after
// data has been received. Before that, the peer may have rejected this side's certificate and
// disconnected. In that case the next receive() reports the rejection, and the data sent so far is
// lost.
bool TlsSession::is_broken() const { return write_error_ != 0 && received_; }

// --- the handshake -----------------------------------------------------------------------------

TlsSession::Step TlsSession::shake_hands() {
  if (!established_) {
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_);
    if (result == 1) {
      established_ = true;
    } else if (note_failure(result)) {
      if (plain_peer_) {
        refuse_plain_peer();
      } else {
        (void)flush();  // sends the alert that tells the peer the reason
      }
      return Step::kFailed;
    }
  }
  if (!flush()) return Step::kWantWrite;
  return established_ ? Step::kDone : Step::kWantRead;
}

// Sends a peer without TLS an alert, from which it recognizes the reason. The peer's bytes are read
// first: closing with unread bytes would reset the connection, and the alert might be lost.
void TlsSession::refuse_plain_peer() {
  std::array<char, 1024> unread;
  [[maybe_unused]] ssize_t ignored = ::recv(fd_, unread.data(), unread.size(), MSG_DONTWAIT);
  ignored = ::send(fd_, kAlert, sizeof(kAlert), MSG_DONTWAIT | MSG_NOSIGNAL);
}

// --- data --------------------------------------------------------------------------------------

ssize_t TlsSession::receive(const iovec* pieces, size_t count) {
  size_t total = 0;
  if (end_ == End::kNone) ERR_clear_error();
  for (const iovec& piece : std::span(pieces, count)) {
    auto* at = static_cast<char*>(piece.iov_base);
    for (size_t left = piece.iov_len; left > 0;) {
      size_t got = 0;
      if (end_ != End::kNone) break;
      const int result = SSL_read_ex(ssl_, at, left, &got);
      if (result != 1) {
        drained_ = true;
        if (!note_failure(result)) {
          if (total > 0) return static_cast<ssize_t>(total);
          errno = EAGAIN;
          return -1;
        }
        break;
      }
      drained_ = false;
      received_ = true;
      at += got;
      left -= got;
      total += got;
      // OpenSSL has nothing left, and the kernel returned less than requested, so it has no more.
      if (!took_all_ && SSL_has_pending(ssl_) == 0) return static_cast<ssize_t>(total);
    }
    if (end_ != End::kNone) break;
  }
  if (total > 0) return static_cast<ssize_t>(total);
  if (end_ == End::kClosed) return 0;
  errno = errno_;
  return -1;
}

// Returns true even if only part of a record has arrived. The next receive() then finds that the
// rest is missing, and an event announces the rest when it arrives.
bool TlsSession::buffered() const {
  return end_ != End::kNone || (!drained_ && SSL_has_pending(ssl_) != 0);
}

// Sends several records in one system call, which saves more time than copying them costs.
ssize_t TlsSession::send(const iovec* pieces, size_t count) {
  if (end_ == End::kFailed) {
    errno = errno_;
    return -1;
  }
  if (!flush()) return -1;
  if (is_broken()) {
    errno = write_error_;
    return -1;
  }
  ERR_clear_error();
  size_t offered = 0;
  for (const iovec& piece : std::span(pieces, count)) offered += piece.iov_len;
  if (offered == 0) return 0;
  gathers_ = offered > kRecordBytes;
  const ssize_t result = write_pieces(pieces, count);
  gathers_ = false;
  const int error = errno;
  (void)flush();  // if bytes remain, flushed() is false
  errno = error;
  return result;
}

// Copies small pieces into a shared record. A piece that fills a record is not copied.
ssize_t TlsSession::write_pieces(const iovec* pieces, size_t count) {
  std::array<char, kRecordBytes> record;
  size_t gathered = 0;
  size_t total = 0;
  // Returns false if nothing more can be written now.
  const auto write = [&](const void* data, size_t size) {
    if (!write_record(data, size)) return false;
    total += size;
    return out_.size() - out_done_ < (gathers_ ? kBatchBytes : 1) || flush();
  };
  const auto result = [&] { return total > 0 ? static_cast<ssize_t>(total) : ssize_t{-1}; };
  for (const iovec& piece : std::span(pieces, count)) {
    const auto* at = static_cast<const char*>(piece.iov_base);
    for (size_t left = piece.iov_len; left > 0;) {
      const size_t size = std::min(left, kRecordBytes - gathered);
      if (size == kRecordBytes) {
        if (!write(at, size)) return result();
      } else {
        std::memcpy(record.data() + gathered, at, size);
        gathered += size;
        if (gathered == kRecordBytes) {
          gathered = 0;
          if (!write(record.data(), kRecordBytes)) return result();
        }
      }
      at += size;
      left -= size;
    }
  }
  if (gathered > 0) (void)write(record.data(), gathered);
  return result();
}

// Writes all of |data| or nothing, since put() accepts everything. Returns false with errno set.
bool TlsSession::write_record(const void* data, size_t size) {
  size_t written = 0;
  const int result = SSL_write_ex(ssl_, data, size, &written);
  if (result == 1 && written == size) {
    if (!is_broken()) return true;
    errno = write_error_;
    return false;
  }
  if (result == 1 || !note_failure(result)) {
    fail(EPROTO, Code::kPeerLost, "TLS: a record was not written whole");
  }
  errno = errno_;
  return false;
}

void TlsSession::say_goodbye() {
  if (!established_ || end_ == End::kFailed || goodbye_said_ || !flush()) return;
  goodbye_said_ = true;
  ERR_clear_error();
  (void)SSL_shutdown(ssl_);
  ERR_clear_error();
}

void TlsSession::read_ahead() { SSL_set_read_ahead(ssl_, 1); }

std::string TlsSession::describe() const {
  return fmt::format("{}, {}", SSL_get_version(ssl_), SSL_get_cipher_name(ssl_));
}

// --- failure -----------------------------------------------------------------------------------

// Returns true if |result| of an OpenSSL call ends the session, and false if the call waits for the
// peer.
bool TlsSession::note_failure(int result) {
  const int kind = SSL_get_error(ssl_, result);
  if (kind == SSL_ERROR_WANT_READ) return false;
  if (kind == SSL_ERROR_ZERO_RETURN) {
    end_ = End::kClosed;
    return true;
  }
  if (plain_peer_) {
    fail(EPROTO, Code::kPermissionDenied,
         "the peer has no TLS, and this process takes TLS only: set HETCOMM_TLS alike on all "
         "ranks");
  } else if (established_ && !received_ && (kernel_end_ || kernel_error_ != 0)) {
    fail(
        kernel_end_ ? ECONNABORTED : kernel_error_, Code::kPeerLost,
        "the peer closed the connection after the TLS handshake: perhaps it refuses this process's "
        "certificate, then its log says why");
  } else if (kernel_error_ != 0) {
    fail(kernel_error_, Code::kPeerLost, "TLS: " + error_text(kernel_error_));
  } else if (kernel_end_) {
    fail(ECONNABORTED, Code::kPeerLost,
         established_ ? "TLS: the connection was cut off, without the peer's goodbye"
                      : "the peer closed the connection during the TLS handshake");
  } else {
    const Status why = failure_of_library();
    fail(EPROTO, why.code(), std::string(why.text()));
  }
  ERR_clear_error();
  return true;
}

void TlsSession::fail(int error, Code code, std::string text) {
  if (end_ == End::kFailed) return;
  end_ = End::kFailed;
  errno_ = error;
  error_ = Status(code, std::move(text));
}

Status TlsSession::failure_of_library() const {
  const long verdict = SSL_get_verify_result(ssl_);
  if (verdict != X509_V_OK) {
    const bool name =
        verdict == X509_V_ERR_HOSTNAME_MISMATCH || verdict == X509_V_ERR_IP_ADDRESS_MISMATCH;
    return Status(
        Code::kPermissionDenied,
        fmt::format(
            "TLS: the peer's certificate is refused: {}{}", X509_verify_cert_error_string(verdict),
            name ? fmt::format(" (HETCOMM_TLS_SERVER_NAME is '{}')", context_->expected_name())
                 : ""));
  }
  const unsigned long error = ERR_peek_error();
  const int reason = ERR_GET_REASON(error);
  const char* text = ERR_reason_error_string(error);
  if (reason > SSL_AD_REASON_OFFSET && reason < SSL_AD_REASON_OFFSET + 256) {
    const int alert = reason - SSL_AD_REASON_OFFSET;
    return Status(
        Code::kPermissionDenied,
        fmt::format("TLS: the peer refuses {}: {}",
                    is_about_certificates(alert) ? "this process's certificate" : "the connection",
                    SSL_alert_desc_string_long(alert)));
  }
  if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
    return Status(Code::kPermissionDenied, "TLS: the peer shows no certificate");
  }
  return Status(Code::kPermissionDenied,
                fmt::format("TLS: {}", text == nullptr ? "unknown failure" : text));
}

std::string StreamSocket::describe(int error) const {
  if (tls_ != nullptr && !tls_->error().ok()) return std::string(tls_->error().text());
  return error_text(error);
}

}  // namespace hetcomm
