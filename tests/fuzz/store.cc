// The store behind its decoder: the input is a list of events (a frame from one of several clients,
// a disconnect, a time step). Properties: no crash; anything that a decoder accepts encodes to the
// same bytes, and an accepted group lies within the job; every accepted request gets exactly one
// reply, at the latest when the table closes.
#include <cstdlib>
#include <map>

#include "src/base/bytes.h"
#include "src/bootstrap/store_table.h"
#include "src/system/clock.h"

namespace hetcomm {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

class Sink final : public ReplySink {
 public:
  void on_exchanged(ClientId /*client*/) override {}
  void send_reply(ClientId client, const Frame& frame) override {
    require(frame->size() > kFrameHeaderBytes);
    [[maybe_unused]] const auto reply =
        decode_reply(ConstByteSpan(*frame).subspan(kFrameHeaderBytes));
    require(waiting[client] == 1);
    waiting[client] = 0;
  }
  std::map<ClientId, int> waiting;
};

// Returns a request from the raw bytes, or one built from them, so that the table is often reached.
Result<StoreRequest> next_request(ByteReader& reader) {
  const auto kind = reader.read<uint8_t>();
  if (kind % 4 == 0) return decode_request(reader.read_bytes(reader.left()));
  StoreRequest request;
  request.operation = static_cast<StoreOperation>(1 + reader.read<uint8_t>() % 6);
  request.size = 1 + reader.read<uint8_t>() % 4;
  request.ranks = request.size;
  if (const auto group = reader.read<uint8_t>(); group % 2 != 0) {
    request.form = ExchangeForm::kGroups;
    request.first = group / 2 % 4;
    request.step = 1 + group / 8 % 4;
    request.ranks = 16;
  }
  request.rank = reader.read<uint8_t>() % request.size;
  request.timeout_ns = reader.read<uint8_t>();
  request.key = std::string(1, static_cast<char>('a' + reader.read<uint8_t>() % 3));
  request.value.resize(reader.read<uint8_t>());
  if (request.operation == StoreOperation::kSurvivors) {
    request.value = {static_cast<std::byte>(reader.read<uint8_t>())};
  }
  if (request.operation == StoreOperation::kBroadcast && request.rank != 0) request.value.clear();
  const std::vector<std::byte> frame = encode_request(request);
  return decode_request(ConstByteSpan(frame).subspan(kFrameHeaderBytes));
}

void run(ConstByteSpan input) {
  if (Result<StoreRequest> request = decode_request(input); request.ok()) {
    const std::vector<std::byte> frame = encode_request(request.value());
    const ConstByteSpan body = ConstByteSpan(frame).subspan(kFrameHeaderBytes);
    require(std::equal(body.begin(), body.end(), input.begin(), input.end()));
    if (request->exchanges()) {
      const RankGroup group = request->group();
      const int64_t last = group.first + int64_t{group.step} * (group.count - 1);
      require(group.first >= 0 && group.step > 0 && group.count > 0 && last < request->ranks);
      require(request->rank >= 0 && request->rank < group.count);
    }
  }
  [[maybe_unused]] const auto reply = decode_reply(input);

  Sink sink;
  StoreTable table({}, sink, {.keys = 4, .bytes = 1000, .ended = 3});
  uint64_t now = 1;
  ByteReader reader(input);
  while (reader.left() > 0) {
    const auto event = reader.read<uint8_t>();
    const ClientId client = event % 5;
    if (event >= 240) {
      now += reader.read<uint8_t>();
      table.expire(now);
      require(table.next_timer_ns() > now);
    } else if (event >= 200) {
      table.disconnect(client);
      sink.waiting[client] = 0;
    } else if (Result<StoreRequest> request = next_request(reader); request.ok()) {
      const bool was_waiting = sink.waiting[client] == 1;
      sink.waiting[client] = 1;
      require(table.handle(client, "client", std::move(request).value(), now) == !was_waiting);
    }
  }
  table.close();
  for (const auto& [client, waits] : sink.waiting) require(waits == 0);
  require(table.next_timer_ns() == kForever);
}

}  // namespace
}  // namespace hetcomm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hetcomm::run(std::as_bytes(std::span(data, size)));
  return 0;
}
