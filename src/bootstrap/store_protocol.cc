#include "src/bootstrap/store_protocol.h"

#include <fmt/core.h>

#include "src/base/bytes.h"
#include "src/base/text.h"

namespace hetcomm {
namespace {

constexpr std::string_view kDisagreement = "the ranks disagree on how large a job is";

std::vector<std::byte> with_length(ConstByteSpan body) {
  ByteWriter frame;
  frame.write_bytes(body);
  return frame.take();
}

constexpr size_t bytes_of_ranks(int32_t size) { return (static_cast<size_t>(size) + 7) / 8; }

// Returns whether the group is valid and each of its members is a rank of the job.
bool has_group(const StoreRequest& request) {
  if (request.form != ExchangeForm::kWhole && request.form != ExchangeForm::kGroups) return false;
  if (request.ranks <= 0 || request.ranks > kMaxStoreRanks || request.first < 0 ||
      request.step < 1 || request.step > kMaxStoreRanks) {
    return false;
  }
  const int64_t last = request.first + int64_t{request.step} * (request.size - 1);
  if (request.form == ExchangeForm::kWhole &&
      request.group() != RankGroup{.first = 0, .step = 1, .count = request.ranks}) {
    return false;
  }
  return last < request.ranks;
}

bool is_valid(const StoreRequest& request) {
  const bool has_rank = request.size > 0 && request.size <= kMaxStoreRanks && request.rank >= 0 &&
                        request.rank < request.size;
  switch (request.operation) {
    case StoreOperation::kPut:
    case StoreOperation::kGet:
      return !request.key.empty();
    case StoreOperation::kGather:
      return !request.key.empty() && has_rank && has_group(request);
    case StoreOperation::kBroadcast:
      return !request.key.empty() && has_rank && has_group(request) &&
             (request.rank == 0 || request.value.empty());
    case StoreOperation::kSurvivors:
      return !request.key.empty() && has_rank &&
             request.value.size() == bytes_of_ranks(request.size);
    case StoreOperation::kJobKey:
      return true;
  }
  return false;
}

// Returns |value| as a code. Codes that a store does not send become kBootstrapFailed.
Code known_code(int32_t value) {
  switch (static_cast<Code>(value)) {
    case Code::kTimedOut:
    case Code::kOutOfResources:
    case Code::kPermissionDenied:
    case Code::kInvalidArgument:
    case Code::kUnsupported:
      return static_cast<Code>(value);
    default:
      return Code::kBootstrapFailed;
  }
}

}  // namespace

Status disagreement_on_form(std::string_view rank, std::string_view scope, ExchangeForm form) {
  const bool groups = form == ExchangeForm::kGroups;
  return Status(Code::kBootstrapFailed,
                fmt::format("{}: {} exchanges '{}' {}, others {}; set HETCOMM_SMALL_JOB alike on "
                            "all ranks",
                            kDisagreement, rank, scope, groups ? "by groups" : "all together",
                            groups ? "all together" : "by groups"));
}

bool tells_disagreement_on_form(std::string_view text) {
  return text.find(kDisagreement) != std::string_view::npos;
}

std::vector<std::byte> encode_ranks(const std::vector<bool>& ranks) {
  std::vector<std::byte> bytes(bytes_of_ranks(static_cast<int32_t>(ranks.size())));
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank]) bytes[rank / 8] |= std::byte{1} << (rank % 8);
  }
  return bytes;
}

std::vector<bool> decode_ranks(ConstByteSpan bytes, int32_t size) {
  if (bytes.size() != bytes_of_ranks(size)) return {};
  std::vector<bool> ranks(static_cast<size_t>(size));
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank] = (bytes[rank / 8] >> (rank % 8) & std::byte{1}) != std::byte{0};
  }
  return ranks;
}

std::vector<std::byte> encode_request(const StoreRequest& request) {
  ByteWriter body;
  body.write(static_cast<uint8_t>(request.operation));
  body.write(request.number);
  body.write(request.rank);
  body.write(request.size);
  body.write(request.timeout_ns);
  body.write(request.limit_ns);
  body.write(request.first);
  body.write(request.step);
  body.write(request.ranks);
  body.write(static_cast<uint8_t>(request.form));
  body.write_string(request.key);
  body.write_bytes(request.value);
  return with_length(body.bytes());
}

Result<StoreRequest> decode_request(ConstByteSpan body) {
  ByteReader reader(body);
  StoreRequest request;
  request.operation = static_cast<StoreOperation>(reader.read<uint8_t>());
  request.number = reader.read<uint64_t>();
  request.rank = reader.read<int32_t>();
  request.size = reader.read<int32_t>();
  request.timeout_ns = reader.read<uint64_t>();
  request.limit_ns = reader.read<uint64_t>();
  request.first = reader.read<int32_t>();
  request.step = reader.read<int32_t>();
  request.ranks = reader.read<int32_t>();
  request.form = static_cast<ExchangeForm>(reader.read<uint8_t>());
  request.key = reader.read_string(kMaxStoreKey);
  const ConstByteSpan value = reader.read_bytes(kMaxStoreValue);
  request.value.assign(value.begin(), value.end());
  if (!reader.finished() || !is_valid(request)) {
    return Status(Code::kInvalidArgument, "malformed request");
  }
  return request;
}

Frame encode_success(ConstByteSpan payload) {
  ByteWriter frame;
  frame.write(static_cast<uint32_t>(sizeof(int32_t) + payload.size()));
  frame.write(static_cast<int32_t>(Code::kOk));
  frame.write_raw(payload);
  return std::make_shared<const std::vector<std::byte>>(frame.take());
}

Frame encode_failure(const Status& status) {
  ByteWriter body;
  body.write(static_cast<int32_t>(status.code()));
  body.write_string(status.text().substr(0, kMaxReplyText));
  return std::make_shared<const std::vector<std::byte>>(with_length(body.bytes()));
}

Result<ConstByteSpan> decode_reply(ConstByteSpan body) {
  const Status malformed(Code::kBootstrapFailed,
                         "rank 0's store has sent a malformed reply; does every rank use the same "
                         "release of hetcomm?");
  ByteReader reader(body);
  const auto code = reader.read<int32_t>();
  if (reader.failed()) return malformed;
  if (code == static_cast<int32_t>(Code::kOk)) return reader.read_raw(reader.left());
  const std::string text = reader.read_string(kMaxReplyText);
  if (!reader.finished()) return malformed;
  return Status(known_code(code), printable(text));
}

}  // namespace hetcomm
