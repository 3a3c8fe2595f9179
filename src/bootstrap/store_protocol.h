// Store and clients exchange frames after the handshake: a 32-bit length and a body, little endian.
// A client has one request at a time, and each gets one reply. The decoders treat input as hostile.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/net/credentials.h"

namespace hetcomm {

inline constexpr size_t kMaxStoreKey = 256;
inline constexpr size_t kMaxStoreValue = 64 * 1024;
inline constexpr int32_t kMaxStoreRanks = 1 << 16;
inline constexpr size_t kFrameHeaderBytes = 4;
// Largest body of a request: fixed fields, key and value.
inline constexpr size_t kMaxRequestBytes = 40 + kMaxStoreKey + kMaxStoreValue;
inline constexpr size_t kMaxReplyText = 4096;

enum class StoreOperation : uint8_t {
  kPut = 1,
  kGet = 2,
  kGather = 3,
  kJobKey = 4,
  kSurvivors = 5
};

struct StoreRequest {
  StoreOperation operation = StoreOperation::kGet;
  int32_t rank = 0;         // kGather, kSurvivors
  int32_t size = 0;         // kGather, kSurvivors: number of ranks
  uint64_t timeout_ns = 0;  // kGet, kGather: how long the reply may take. kSurvivors: 0 ends it
  uint64_t limit_ns = 0;    // kGather: the time limit that failures name; 0: timeout_ns
  std::string key;          // kGather, kSurvivors: the scope
  std::vector<std::byte> value;  // kSurvivors: the set of ranks that are lost
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
