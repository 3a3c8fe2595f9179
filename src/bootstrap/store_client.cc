#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include <fmt/core.h>

#include "src/base/bytes.h"
#include "src/base/text.h"
#include "src/bootstrap/store.h"
#include "src/bootstrap/store_finder.h"
#include "src/net/hash.h"
#include "src/net/listening_socket.h"
#include "src/net/socket_peer.h"
#include "src/system/clock.h"

namespace hetcomm {
namespace {

constexpr size_t kReplyOverhead = 64 + kMaxReplyText;
constexpr size_t kReceiveChunk = 1 << 20;
// The number of times that a request without a reply is sent again, on another connection.
constexpr int kRepeats = 4;

// Returns the time limit sent to the store. It is a little less than the remaining time, so that
// the store's reply, which names the missing ranks, arrives in time.
uint64_t time_for_store(uint64_t deadline_ns) {
  if (deadline_ns == kForever) return kForever;
  const uint64_t now = now_ns();
  const uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
  return left - std::min<uint64_t>(left / 8, 500'000'000);
}

// Returns the end of an error text, such as " within 3 s".
std::string within(uint64_t limit_ns) {
  return limit_ns == 0 || limit_ns == kForever ? " in time" : " within " + duration_text(limit_ns);
}

}  // namespace

std::string StoreClient::Options::service() const {
  return relay ? fmt::format("rank {}'s relay", *relay) : "rank 0's store";
}

StoreClient::StoreClient(Log& log, Options options) : log_(log), options_(std::move(options)) {}

StoreClient::~StoreClient() = default;

Status StoreClient::connect(uint64_t deadline_ns) {
  if (socket_.valid()) return {};
  Result<FoundStore> found = find_store(log_, options_, deadline_ns, limit_ns_, found_);
  const bool returns = found_ && !options_.relay;
  if (!found.ok()) {
    return returns ? found.status().annotate("rank 0's store is gone; did rank 0 end?")
                   : found.status();
  }
  if (returns && found->id != id_) {
    return Status(Code::kBootstrapFailed,
                  "rank 0's store is gone, and another one of the same name has taken its place; "
                  "did rank 0 start again?");
  }
  found_ = true;
  id_ = found->id;
  socket_ = std::move(found->socket);
  peer_ = peer_name(socket_.get());
  used_ns_ = now_ns();
  if (Result<Address> local = bound_address(socket_.get()); local.ok() && local_.length() == 0) {
    local_ = local->with_port(0);
  }
  if (Result<Address> remote = connected_address(socket_.get()); remote.ok()) {
    // Keeps only the store's port, because another store with the same name may use another port.
    std::erase_if(options_.addresses,
                  [&](const Address& each) { return each.port() != remote->port(); });
  }
  log_.debug("store: connected to {}", peer_);
  return {};
}

Status StoreClient::put(const std::string& key, ConstByteSpan value, uint64_t deadline_ns) {
  if (key.empty() || key.size() > kMaxStoreKey || value.size() > kMaxStoreValue) {
    return Status(Code::kInvalidArgument,
                  fmt::format("store: key of {} or value of {} bytes", key.size(), value.size()));
  }
  StoreRequest request;
  request.operation = StoreOperation::kPut;
  request.key = key;
  request.value.assign(value.begin(), value.end());
  return call(request, 0, deadline_ns).status();
}

Result<std::vector<std::byte>> StoreClient::get(const std::string& key, uint64_t deadline_ns) {
  return get(key, time_for_store(deadline_ns), deadline_ns);
}

Result<std::vector<std::byte>> StoreClient::get(const std::string& key, uint64_t wait_ns,
                                                uint64_t deadline_ns) {
  if (key.empty() || key.size() > kMaxStoreKey) {
    return Status(Code::kInvalidArgument, fmt::format("store: key of {} bytes", key.size()));
  }
  StoreRequest request;
  request.operation = StoreOperation::kGet;
  request.key = key;
  request.timeout_ns = wait_ns;
  return call(request, kMaxStoreValue, deadline_ns);
}

Result<StoreRequest> StoreClient::exchange_request(StoreOperation operation,
                                                   const std::string& scope, int rank,
                                                   const Members& members, ConstByteSpan mine,
                                                   uint64_t deadline_ns) const {
  const RankGroup& group = members.group;
  const bool fits = group.first >= 0 && group.step > 0 && group.count > 0 && members.ranks > 0 &&
                    members.ranks <= kMaxStoreRanks &&
                    int64_t{group.step} * (group.count - 1) < members.ranks - group.first;
  if (scope.empty() || scope.size() > kMaxStoreKey || mine.size() > kMaxStoreValue || !fits ||
      !group.has(rank)) {
    return Status(Code::kInvalidArgument,
                  fmt::format("store: exchange '{}' of {} bytes, rank {} among {} of {}", scope,
                              mine.size(), rank, group.count, members.ranks));
  }
  StoreRequest request;
  request.operation = operation;
  request.rank = group.index_of(rank);
  request.size = group.count;
  request.timeout_ns = time_for_store(deadline_ns);
  request.limit_ns = limit_ns_;
  request.first = group.first;
  request.step = group.step;
  request.ranks = members.ranks;
  request.form = members.form;
  request.key = scope;
  request.value.assign(mine.begin(), mine.end());
  return request;
}

Result<std::vector<std::byte>> StoreClient::broadcast(const std::string& scope, int rank,
                                                      const Members& members, ConstByteSpan mine,
                                                      uint64_t deadline_ns) {
  if (rank != members.group.first) mine = {};
  Result<StoreRequest> request =
      exchange_request(StoreOperation::kBroadcast, scope, rank, members, mine, deadline_ns);
  if (!request.ok()) return request.status();
  return call(request.value(), kMaxStoreValue, deadline_ns);
}

Result<std::vector<std::vector<std::byte>>> StoreClient::gather(const std::string& scope, int rank,
                                                                const Members& members,
                                                                ConstByteSpan mine,
                                                                uint64_t deadline_ns) {
  Result<StoreRequest> request =
      exchange_request(StoreOperation::kGather, scope, rank, members, mine, deadline_ns);
  if (!request.ok()) return request.status();
  const auto count = static_cast<size_t>(members.group.count);
  Result<std::vector<std::byte>> reply =
      call(request.value(), count * (kMaxStoreValue + sizeof(uint32_t)), deadline_ns);
  if (!reply.ok()) return reply.status();
  ByteReader reader(reply.value());
  std::vector<std::vector<std::byte>> values(count);
  for (std::vector<std::byte>& value : values) {
    const ConstByteSpan bytes = reader.read_bytes(kMaxStoreValue);
    value.assign(bytes.begin(), bytes.end());
  }
  if (!reader.finished())
    return Status(Code::kBootstrapFailed,
                  "rank 0's store has sent a malformed reply; does every rank use the same release "
                  "of hetcomm?");
  return values;
}

Result<std::vector<bool>> StoreClient::survivors(const std::string& scope,
                                                 const std::vector<bool>& lost, bool last,
                                                 uint64_t deadline_ns) {
  StoreRequest request;
  request.operation = StoreOperation::kSurvivors;
  request.rank = options_.rank;
  request.size = static_cast<int32_t>(lost.size());
  request.timeout_ns = last ? 0 : 1;
  request.key = scope;
  request.value = encode_ranks(lost);
  Result<std::vector<std::byte>> reply = call(request, request.value.size(), deadline_ns);
  if (!reply.ok()) return reply.status();
  if (reply->empty()) return std::vector<bool>();
  std::vector<bool> left = decode_ranks(reply.value(), request.size);
  if (left.empty() || !left[static_cast<size_t>(options_.rank)]) {
    return Status(Code::kBootstrapFailed,
                  "rank 0's store has sent a malformed reply; does every rank use the same release "
                  "of hetcomm?");
  }
  return left;
}

Result<Secret> StoreClient::job_key(uint64_t deadline_ns) {
  StoreRequest request;
  request.operation = StoreOperation::kJobKey;
  Secret::Bytes bytes{};
  Result<std::vector<std::byte>> reply = call(request, bytes.size(), deadline_ns);
  if (!reply.ok()) return reply.status();
  if (reply->size() != bytes.size()) {
    return Status(Code::kBootstrapFailed,
                  "rank 0's store has sent a malformed reply; does every rank use the same release "
                  "of hetcomm?");
  }
  std::copy(reply->begin(), reply->end(), bytes.begin());
  wipe(*reply);
  Secret secret(bytes);
  wipe(bytes);
  return secret;
}

Result<std::vector<std::byte>> StoreClient::call(StoreRequest request, size_t reply_limit,
                                                 uint64_t deadline_ns) {
  HETCOMM_RETURN_IF_ERROR(refresh(deadline_ns));
  HETCOMM_RETURN_IF_ERROR(connect(deadline_ns));
  request.number = ++requests_;
  Result<std::vector<std::byte>> body =
      exchange_again(std::move(request), reply_limit + kReplyOverhead, deadline_ns);
  if (!body.ok()) {
    // Closes the connection, so that a late reply is not mistaken for the reply to the next
    // request.
    socket_.reset();
    if (options_.relay) return body.status();
    if (body.status().code() == Code::kPeerLost) {
      return Status(Code::kBootstrapFailed,
                    "rank 0 closed the connection during startup; see its log");
    }
    return Status(Code::kBootstrapFailed,
                  fmt::format("rank 0's store at {}: {}; see the log of rank 0", peer_,
                              body.status().text()));
  }
  used_ns_ = now_ns();
  Result<ConstByteSpan> payload = decode_reply(body.value());
  if (!payload.ok()) return payload.status();
  return std::vector<std::byte>(payload->begin(), payload->end());
}

// Replaces a connection that the store has closed, or may close because it was idle for too long.
Status StoreClient::refresh(uint64_t deadline_ns) {
  if (!socket_.valid() || options_.quiet_ns == kForever) return {};
  const uint64_t now = now_ns();
  char byte = 0;
  // No request is pending, so only the end of the connection can arrive.
  const bool ended = ::recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 ||
                     (errno != EAGAIN && errno != EINTR);
  if (!ended && now < deadline_after(used_ns_, options_.quiet_ns)) return {};
  socket_.reset();
  return connect(deadline_ns);
}

// Sends a request, and repeats it on another connection if its connection has ended. The store may
// have closed an idle connection, or a network device may have dropped it. Every request to the
// store can be repeated: the store recognizes the repetition, and repeats the reply to a finished
// exchange. Requests to a relay are sent only once.
Result<std::vector<std::byte>> StoreClient::exchange_again(StoreRequest request, size_t reply_limit,
                                                           uint64_t deadline_ns) {
  for (int i = 0;; ++i) {
    // The time limit shrinks with each attempt.
    request.timeout_ns = std::min(request.timeout_ns, time_for_store(deadline_ns));
    Result<std::vector<std::byte>> body =
        exchange(encode_request(request), reply_limit, deadline_ns);
    const bool lost = !body.ok() && body.status().code() == Code::kPeerLost;
    if (!lost || options_.relay || i == kRepeats) return body;
    socket_.reset();
    if (!connect(deadline_ns).ok()) return body;
  }
}

Result<std::vector<std::byte>> StoreClient::exchange(ConstByteSpan frame, size_t reply_limit,
                                                     uint64_t deadline_ns) {
  HETCOMM_RETURN_IF_ERROR(send_all(frame, deadline_ns));
  std::array<std::byte, kFrameHeaderBytes> header{};
  HETCOMM_RETURN_IF_ERROR(receive_all(header, deadline_ns));
  const size_t length = ByteReader(header).read<uint32_t>();
  if (length > reply_limit) return Status(Code::kBootstrapFailed, "a malformed reply");
  std::vector<std::byte> body;
  // The buffer grows with the bytes received, not with the announced length.
  while (body.size() < length) {
    const size_t piece = std::min(length - body.size(), kReceiveChunk);
    body.resize(body.size() + piece);
    HETCOMM_RETURN_IF_ERROR(receive_all(ByteSpan(body).last(piece), deadline_ns));
  }
  return body;
}

Status StoreClient::send_all(ConstByteSpan bytes, uint64_t deadline_ns) {
  while (!bytes.empty() || !socket_.flushed()) {
    ssize_t sent = 0;
    if (!bytes.empty()) {
      sent = socket_.send(bytes.data(), bytes.size());
    } else if (!socket_.flush()) {
      sent = -1;
    }
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      HETCOMM_RETURN_IF_ERROR(wait_for(POLLOUT, deadline_ns));
    } else if (errno != EINTR) {
      return failure(errno, "send");
    }
  }
  return {};
}

Status StoreClient::receive_all(ByteSpan bytes, uint64_t deadline_ns) {
  while (!bytes.empty()) {
    const ssize_t got = socket_.receive(bytes.data(), bytes.size());
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
    } else if (got == 0) {
      return Code::kPeerLost;
    } else if (errno == EAGAIN) {
      HETCOMM_RETURN_IF_ERROR(wait_for(POLLIN, deadline_ns));
    } else if (errno != EINTR) {
      return failure(errno, "receive");
    }
  }
  return {};
}

Status StoreClient::failure(int error, std::string_view what) const {
  const Code code = status_from_errno(error, {}).code();
  return Status(code, fmt::format("{}: {}", what, socket_.describe(error)));
}

Status StoreClient::wait_for(short events, uint64_t deadline_ns) {
  const uint64_t now = now_ns();
  if (now >= deadline_ns) return Status(Code::kTimedOut, "no answer" + within(limit_ns_));
  const uint64_t left = deadline_ns - now;
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(left / 1'000'000'000);
  timeout.tv_nsec = static_cast<long>(left % 1'000'000'000);
  pollfd descriptor{.fd = socket_.get(), .events = events, .revents = 0};
  ::ppoll(&descriptor, 1, deadline_ns == kForever ? nullptr : &timeout, nullptr);
  return {};
}

}  // namespace hetcomm
