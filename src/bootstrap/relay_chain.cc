#include "src/bootstrap/relay_chain.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include <fmt/core.h>

#include "src/system/clock.h"

namespace hetcomm {
namespace {

// Short pieces let all ranks of a chain soon send at the same time. Long pieces need fewer
// requests.
constexpr size_t kShortPiece = 8 * 1024;
constexpr size_t kLongPiece = 60 * 1024;
constexpr uint64_t kShortValue = 256 * 1024;  // longer values use long pieces
static_assert((kMaxHandout / kLongPiece + 1) * sizeof(Digest) <= kMaxStoreValue);

// The time limit for each answer of a relay, at most an eighth of the total time.
constexpr uint64_t kPatienceNs = 3'000'000'000;
constexpr uint64_t kWaitNs = 500'000'000;  // how long a relay waits for a missing piece
// Pause between two rounds through all sources.
constexpr uint64_t kFirstRoundPauseNs = 10'000'000;
constexpr uint64_t kLastRoundPauseNs = 500'000'000;
constexpr size_t kMaxTold = 6;  // number of sources that a failure names

uint64_t time_left(uint64_t deadline_ns) {
  if (deadline_ns == kForever) return kForever;
  const uint64_t now = now_ns();
  return deadline_ns > now ? deadline_ns - now : 0;
}

size_t piece_bytes(uint64_t size) { return size <= kShortValue ? kShortPiece : kLongPiece; }

size_t pieces_of(uint64_t size) {
  const size_t piece = piece_bytes(size);
  return static_cast<size_t>((size + piece - 1) / piece);
}

std::vector<std::byte> list_of(ConstByteSpan value) {
  ByteWriter list;
  const size_t piece = piece_bytes(value.size());
  for (size_t at = 0; at < value.size(); at += piece) {
    list.write_raw(sha256(value.subspan(at, std::min(piece, value.size() - at))));
  }
  return list.take();
}

// Pulls one value from the sources.
class Puller {
 public:
  Puller(Relay& relay, const Handout& handout, const std::vector<RelaySource>& sources,
         uint64_t deadline_ns)
      : relay_(relay),
        handout_(handout),
        deadline_ns_(deadline_ns),
        until_ns_(deadline_after(deadline_ns, time_left(deadline_ns))),
        patience_ns_(std::min(kPatienceNs, time_left(deadline_ns) / 8)),
        third_ns_(time_left(deadline_ns) / 3) {
    for (const RelaySource& source : sources) sources_.push_back({.of = source});
  }

  Result<std::vector<std::byte>> run() {
    for (uint64_t pause = kFirstRoundPauseNs;; pause = std::min(2 * pause, kLastRoundPauseNs)) {
      bool some_left = false;
      for (Source& source : sources_) {
        if (source.is_out || now_ns() >= deadline_ns_) continue;
        pull_from(source);
        if (is_complete()) return std::move(value_);
        some_left = some_left || !source.is_out;
      }
      if (!some_left || now_ns() >= deadline_ns_) return failure();
      std::this_thread::sleep_for(
          std::chrono::nanoseconds(std::min(pause, time_left(deadline_ns_))));
    }
  }

 private:
  struct Source {
    RelaySource of;
    bool is_out = false;  // true: not used again
    std::string why{};
  };

  bool is_complete() const { return has_list_ && next_ == pieces_of(handout_.size); }

  // Requests one piece after another from |source|, until the source fails or its time is up.
  void pull_from(Source& source) {
    Result<std::unique_ptr<StoreClient>> made = relay_.client_of(source.of.rank, source.of.contact);
    if (!made.ok()) {
      source.is_out = true;
      source.why = made.status().text();
      return;
    }
    StoreClient& client = *made.value();
    const uint64_t end = std::min(deadline_ns_, deadline_after(now_ns(), third_ns_));
    while (!is_complete()) {
      const uint64_t now = now_ns();
      if (now >= end) {
        source.why = "it was too slow";
        return;
      }
      const uint64_t wait = std::min({kWaitNs, patience_ns_, end - now});
      const uint64_t limit = std::min(deadline_ns_, deadline_after(now, wait + patience_ns_));
      auto piece = client.get(next_key(), wait, limit);
      if (piece.ok()) {
        if (take(std::move(piece).value())) continue;
        source.is_out = true;
        source.why = "it has sent something else";
        return;
      }
      // The source has answered that it does not have the piece yet.
      if (piece.status().code() == Code::kTimedOut && client.connected()) continue;
      source.is_out = piece.status().code() == Code::kPermissionDenied;
      source.why = client.connected() ? "it has ended" : std::string(piece.status().text());
      return;
    }
  }

  std::string next_key() const {
    return has_list_ ? piece_key(handout_, next_) : list_key(handout_);
  }

  // Checks the bytes received for next_key() and passes them on. Returns false if they are wrong.
  bool take(std::vector<std::byte> bytes) {
    const std::string key = next_key();
    if (!has_list_) {
      if (bytes.size() != pieces_of(handout_.size) * sizeof(Digest) ||
          sha256(bytes) != handout_.list_hash) {
        return false;
      }
      list_ = bytes;
      has_list_ = true;
    } else {
      const size_t piece = piece_bytes(handout_.size);
      const size_t length = std::min<size_t>(piece, handout_.size - value_.size());
      const ConstByteSpan hash =
          ConstByteSpan(list_).subspan(next_ * sizeof(Digest), sizeof(Digest));
      if (bytes.size() != length || !equal_in_constant_time(sha256(bytes), hash)) return false;
      value_.insert(value_.end(), bytes.begin(), bytes.end());
      ++next_;
    }
    relay_.keep(key, std::move(bytes), until_ns_);
    return true;
  }

  Status failure() const {
    std::string text;
    for (size_t i = 0; i < std::min(sources_.size(), kMaxTold); ++i) {
      const Source& source = sources_[i];
      text += fmt::format("{}rank {}: {}", i == 0 ? "" : "; ", source.of.rank,
                          source.why.empty() ? "no answer" : source.why);
    }
    if (sources_.size() > kMaxTold)
      text += fmt::format("; and {} more", sources_.size() - kMaxTold);
    return Status(
        Code::kBootstrapFailed,
        fmt::format("what all ranks have said did not come from the ranks before this one: "
                    "{}",
                    sources_.empty() ? "there are none" : text));
  }

  Relay& relay_;
  const Handout handout_;
  const uint64_t deadline_ns_;
  const uint64_t until_ns_;  // when the other ranks' time is up, after which they request nothing
  const uint64_t patience_ns_;
  const uint64_t third_ns_;
  std::vector<Source> sources_;
  bool has_list_ = false;
  std::vector<std::byte> list_;
  size_t next_ = 0;  // index of the next piece
  std::vector<std::byte> value_;
};

}  // namespace

void Handout::encode(ByteWriter& writer) const {
  writer.write(size);
  writer.write_raw(list_hash);
}

Result<Handout> Handout::decode(ByteReader& reader) {
  Handout handout;
  handout.size = reader.read<uint64_t>();
  const ConstByteSpan hash = reader.read_raw(handout.list_hash.size());
  if (reader.failed() || handout.size > kMaxHandout) {
    return Status(
        Code::kBootstrapFailed,
        "rank 0 has sent a malformed word on what is handed down; does every rank use the "
        "same release of hetcomm?");
  }
  std::copy(hash.begin(), hash.end(), handout.list_hash.begin());
  return handout;
}

Handout handout_of(ConstByteSpan value) {
  return {.size = value.size(), .list_hash = sha256(list_of(value))};
}

std::string list_key(const Handout& handout) {
  std::string key;
  for (size_t i = 0; i < 16; ++i) {
    key += fmt::format("{:02x}", std::to_integer<unsigned int>(handout.list_hash[i]));
  }
  return key;
}

std::string piece_key(const Handout& handout, size_t index) {
  return fmt::format("{}/{}", list_key(handout), index);
}

std::string last_key(const Handout& handout) {
  const size_t pieces = pieces_of(handout.size);
  return pieces == 0 ? list_key(handout) : piece_key(handout, pieces - 1);
}

void offer(Relay& relay, ConstByteSpan value, uint64_t until_ns) {
  const std::vector<std::byte> list = list_of(value);
  const Handout handout{.size = value.size(), .list_hash = sha256(list)};
  relay.keep(list_key(handout), list, until_ns);
  const size_t piece = piece_bytes(value.size());
  for (size_t index = 0; index < pieces_of(value.size()); ++index) {
    const size_t at = index * piece;
    const ConstByteSpan bytes = value.subspan(at, std::min(piece, value.size() - at));
    relay.keep(piece_key(handout, index), {bytes.begin(), bytes.end()}, until_ns);
  }
}

Result<std::vector<std::byte>> pull(Relay& relay, const Handout& handout,
                                    const std::vector<RelaySource>& sources, uint64_t deadline_ns) {
  return Puller(relay, handout, sources, deadline_ns).run();
}

}  // namespace hetcomm
