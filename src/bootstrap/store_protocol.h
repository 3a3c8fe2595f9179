// Store and clients exchange frames after the handshake: a 32-bit length and a body, little endian.
// A client has one request at a time, and each gets one reply. The decoders treat input as hostile.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/bootstrap/rank_group.h"
#include "src/net/credentials.h"

namespace hetcomm {

inline constexpr size_t kMaxStoreKey = 256;
inline constexpr size_t kMaxStoreValue = 64 * 1024;
inline constexpr int32_t kMaxStoreRanks = 1 << 16;
inline constexpr size_t kFrameHeaderBytes = 4;
// Largest body of a request: fixed fields, key and value.
inline constexpr size_t kMaxRequestBytes = 64 + kMaxStoreKey + kMaxStoreValue;
inline constexpr size_t kMaxReplyText = 4096;

// A process that looks for the store shows its ticket with its claim (Hello::extra). Ranks draw it
// for each bootstrap, so that the store knows those that it has served before. The store answers
// each proved connection with a greeting before any request: its id, or why it serves this client
// not.
using StoreTicket = std::array<std::byte, 16>;
// Drawn by each store, so that a client that connects again knows the one that it had.
using StoreId = std::array<std::byte, 16>;

enum class StoreOperation : uint8_t {
  kPut = 1,
  kGet = 2,
  kGather = 3,
  kJobKey = 4,
  kSurvivors = 5,
  kBroadcast = 6  // a gather of which only the first member's value goes to all
};

// Whether an exchange is one of all ranks or of groups of them. Ranks that disagree about it in one
// scope would wait for each other.
enum class ExchangeForm : uint8_t { kWhole = 0, kGroups = 1 };

// The ranks that exchange values.
struct Members {
  RankGroup group;
  int ranks = 0;  // of the job
  ExchangeForm form = ExchangeForm::kWhole;

  static Members all(int ranks) { return {.group = {.count = ranks}, .ranks = ranks}; }
  // Some of |ranks| ranks. Others exchange values in the same scope.
  static Members of(const RankGroup& group, int ranks) {
    return {.group = group, .ranks = ranks, .form = ExchangeForm::kGroups};
  }
};

// Says that rank |rank| of scope |scope| exchanges values in |form|, and others in the other one.
Status disagreement_on_form(std::string_view rank, std::string_view scope, ExchangeForm form);

struct StoreRequest {
  StoreOperation operation = StoreOperation::kGet;
  uint64_t number = 0;      // among those of its client; one that is sent again has the same
  int32_t rank = 0;         // kSurvivors: the rank. kGather, kBroadcast: its place in the group
  int32_t size = 0;         // kSurvivors: number of ranks. kGather, kBroadcast: of members
  uint64_t timeout_ns = 0;  // kGet, kGather: how long the reply may take. kSurvivors: 0 ends it
  uint64_t limit_ns = 0;    // kGather: the time limit that failures name; 0: timeout_ns
  // kGather, kBroadcast: the first rank of the group, the distance of its ranks, and the number of
  // all ranks, of which failures speak.
  int32_t first = 0;
  int32_t step = 1;
  int32_t ranks = 0;
  ExchangeForm form = ExchangeForm::kWhole;
  std::string key;  // kGather, kBroadcast, kSurvivors: the scope
  // kSurvivors: the set of ranks that are lost. kBroadcast: the first member's alone.
  std::vector<std::byte> value;

  bool exchanges() const {
    return operation == StoreOperation::kGather || operation == StoreOperation::kBroadcast;
  }
  RankGroup group() const { return {.first = first, .step = step, .count = size}; }
};

// A set of ranks, a bit for each.
std::vector<std::byte> encode_ranks(const std::vector<bool>& ranks);
// Returns a set of |size| ranks, or an empty vector if |bytes| are no such set.
std::vector<bool> decode_ranks(ConstByteSpan bytes, int32_t size);

// A whole frame, shared by all who get the same reply.
using Frame = std::shared_ptr<const std::vector<std::byte>>;

std::vector<std::byte> encode_request(const StoreRequest& request);
// |body| is a frame without its length.
Result<StoreRequest> decode_request(ConstByteSpan body);

Frame encode_success(ConstByteSpan payload);
Frame encode_failure(const Status& status);
// The payload, borrowed from |body|, or the failure that the store reported.
Result<ConstByteSpan> decode_reply(ConstByteSpan body);

}  // namespace hetcomm
