// Provides TLS 1.3 with certificates on both sides, on non-blocking sockets.
//
// A TlsContext holds this process's key and certificate and the authority that signs all
// certificates. A TlsSession is the state of one connection. The caller first calls shake_hands()
// until it is done, then receive() and send(), which behave like the system calls. The socket's
// owner polls and closes the socket.
//
//   * Records are written to the socket immediately. The session keeps the part that the kernel
//     does not take (about 128 KiB at most), and accepts nothing more until that has been sent.
//     Bytes that send() has accepted are encrypted, and the caller can reuse their memory. A later
//     send() need not repeat bytes that were refused.
//   * A socket that can no longer be written can still be read: data that the peer sent before it
//     closed the connection is delivered.
//   * buffered() reports bytes, or an end behind them, that the session has taken from the kernel
//     and the caller has not received yet.
//   * The end of the stream is clean only if the peer has announced it inside TLS. A connection
//     that just stops is an error, because anybody on the path can cut it.
//   * No renegotiation (TLS 1.3 has none), no tickets, no resumption, no early data.
//
// Both sides recognize the first byte of the plain protocol, so a process with TLS and one without
// detect the mismatch instead of waiting.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/system/config.h"
#include "src/system/log.h"

// Declares OpenSSL's types, so that its headers are needed only in tls.cc and tls_session.cc.
struct bio_method_st;
struct bio_st;
struct ssl_ctx_st;
struct ssl_st;

namespace hetcomm {

class TlsSession;

// These return whether HETCOMM_TLS and HETCOMM_REQUIRE_TLS are on.
bool tls_wanted(const Config& config);
bool tls_required(const Config& config);

class TlsContext : public std::enable_shared_from_this<TlsContext> {
 public:
  // Creates a context from HETCOMM_TLS and its related variables. Returns null if TLS is off. Fails
  // if TLS is on and unavailable, or off while HETCOMM_REQUIRE_TLS is on; the text names the
  // variable.
  static Result<std::shared_ptr<const TlsContext>> create(const Config& config, Log& log);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // These open a session. They return null if memory runs out. [any-thread]
  std::unique_ptr<TlsSession> connect(int fd) const { return open(fd, false); }
  std::unique_ptr<TlsSession> accept(int fd) const { return open(fd, true); }
  // Returns the name required in the peer's certificate; empty if any name is accepted.
  const std::string& expected_name() const { return expected_name_; }

 private:
  TlsContext() = default;
  Status load(const Config& config, Log& log);
  Status load_certificate(const std::string& path, Log& log);
  Status load_key(const std::string& path, Log& log);
  Status load_authority(const std::string& path, Log& log);
  std::unique_ptr<TlsSession> open(int fd, bool accepts) const;

  ssl_ctx_st* context_ = nullptr;
  bio_method_st* method_ = nullptr;
  std::string expected_name_;
};

class TlsSession {
 public:
  enum class Step : uint8_t { kWantRead, kWantWrite, kDone, kFailed };

  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Advances as far as possible without blocking. kDone means that the peer's certificate is good.
  // The peer may still refuse this side's certificate. The first receive() then reports the
  // refusal.
  Step shake_hands();
  bool established() const { return established_; }
  // Returns the failure, or OK if there is none.
  const Status& error() const { return error_; }
  bool peer_spoke() const { return peer_spoke_; }

  // See StreamSocket. An errno other than EAGAIN is final, and error() has details.
  ssize_t receive(const iovec* pieces, size_t count);
  ssize_t send(const iovec* pieces, size_t count);
  bool buffered() const;
  bool flushed() const { return out_.size() == out_done_; }
  // See StreamSocket. Sets errno to EAGAIN if it returns false.
  bool flush();
  void say_goodbye();
  // Makes reads take everything that the kernel has, beyond the current record, to save system
  // calls.
  void read_ahead();
  // Returns the TLS version and the cipher, such as "TLSv1.3, TLS_AES_128_GCM_SHA256".
  std::string describe() const;

  // OpenSSL's callbacks read and write the socket through these two.
  int put(const char* data, int size);
  int take(char* data, int size);

 private:
  friend class TlsContext;
  enum class End : uint8_t { kNone, kClosed, kFailed };
  TlsSession(std::shared_ptr<const TlsContext> context, int fd)
      : context_(std::move(context)), fd_(fd) {}

  ssize_t write_pieces(const iovec* pieces, size_t count);
  bool write_record(const void* data, size_t size);
  bool note_failure(int result);
  void fail(int error, Code code, std::string text);
  bool is_broken() const;
  void refuse_plain_peer();
  Status failure_of_library() const;

  const std::shared_ptr<const TlsContext> context_;  // owns the BIO method that |ssl_| uses
  const int fd_;
  ssl_st* ssl_ = nullptr;
  bool established_ = false;
  bool received_ = false;  // receive() has returned data
  bool peer_spoke_ = false;
  bool plain_peer_ = false;
  bool drained_ = true;    // the last read found nothing, or there was none yet
  bool took_all_ = false;  // the kernel filled the last request, so there may be more
  bool kernel_end_ = false;
  bool goodbye_said_ = false;
  bool gathers_ = false;  // put() only collects data and sends nothing
  End end_ = End::kNone;
  int kernel_error_ = 0;  // errno of a failed receive
  int write_error_ = 0;
  int errno_ = 0;  // errno to report for the failure
  Status error_;
  std::vector<char> out_;  // bytes of records that the kernel has not accepted yet
  size_t out_done_ = 0;
};

}  // namespace hetcomm
