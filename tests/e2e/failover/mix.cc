// All operations at once, in both directions, with a model of the expected result on each side:
//
//   * messages of each stream arrive once, in order, whole;
//   * each notification comes once, its bytes are right when it comes, and nothing writes them
//     later;
//   * a get reads the bytes that were put, immediately and a while later;
//   * every atomic happened once, or, if its outcome was reported as unknown, at most once.
#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>

#include "tests/e2e/failover/rank.h"

namespace hetcomm::test {
namespace {

constexpr uint64_t kStreams = 3;
constexpr uint64_t kLargest = 768 << 10;  // largest message
constexpr uint64_t kWindow = 4;           // messages in flight per stream
constexpr uint64_t kSlots = 16;
constexpr uint64_t kSlotBytes = 192 << 10;
constexpr uint64_t kTracks = 2;
constexpr uint64_t kTrackBytes = 512 << 10;
constexpr uint64_t kAckTag = 100;
constexpr uint64_t kByeTag = 101;
constexpr double kStallSeconds = 40;
constexpr std::byte kPoison{0xd7};

// Layout of the window.
constexpr uint64_t kAdded = 0;     // word that fetch_adds go to
constexpr uint64_t kSwapped = 64;  // word that compare_swaps go to
constexpr uint64_t kFirstSlot = 4096;
constexpr uint64_t kFirstTrack = kFirstSlot + kSlots * kSlotBytes;
constexpr uint64_t kWindowBytes = kFirstTrack + kTracks * kTrackBytes;

struct Put {
  uint64_t length;
  uint64_t seed;
};
Put put_of(uint64_t seed, int from, uint64_t index) {
  Random random(mix(seed * 2 + static_cast<uint64_t>(from)) + index);
  const uint64_t length = random_size(random, 0, kSlotBytes);
  return {length, random.next()};
}
Put message_of(uint64_t seed, int from, uint64_t stream, uint64_t index) {
  Random random(mix(seed * 2 + static_cast<uint64_t>(from) + 77 * (stream + 1)) + index);
  const uint64_t length = random_size(random, sizeof(uint64_t), kLargest);
  return {length, random.next()};
}

class Mix {
 public:
  Mix(Rank& rank, uint64_t seed, uint64_t least_puts)
      : rank_(rank),
        seed_(seed),
        least_puts_(least_puts),
        random_(seed * 2 + static_cast<uint64_t>(rank.rank())),
        window_(rank.open_window(kWindowBytes)) {}

  void run();

 private:
  using Then = std::function<void(const hetcomm_completion_t&)>;
  struct Pending {
    hetcomm_request_t* request;
    const char* what;
    bool may_be_unknown;
    Then then;
  };
  struct Stream {
    uint64_t sent = 0;
    uint64_t under_way = 0;
    uint64_t received = 0;
    uint64_t posted = 0;
    uint64_t ends = 0;
    uint64_t ends_sent = 0;
    uint64_t first_end = UINT64_MAX;  // receives end in any order
  };
  struct Slot {
    std::vector<std::byte> bytes;
    bool busy = false;  // until the owner has answered
    bool putting = false;
  };
  struct Held {
    uint64_t index;
    uint64_t length;
    Clock::time_point until;
  };
  struct Track {
    std::vector<std::byte> out;
    std::vector<std::byte> in;
    uint64_t offset = 0;
    uint64_t rounds = 0;
    bool busy = false;
    bool again = false;  // read once more
    Clock::time_point due;
  };

  bool stopping() const { return rank_.orders().stop && put_ >= least_puts_; }
  void watch(hetcomm_request_t* request, const char* what, Then then, bool may_be_unknown = false) {
    pending_.push_back({request, what, may_be_unknown, std::move(then)});
  }
  void completed(size_t index, const hetcomm_completion_t& completion);
  void send_messages();
  void post_receive(uint64_t stream);
  void post_answer_receive();
  void start_puts();
  void take_notifications();
  void release_slots();
  void run_track(uint64_t index);
  void read_track(uint64_t index);
  void start_atomics();
  void report();
  void stalled();
  bool done() const;
  void check_end();

  Rank& rank_;
  const uint64_t seed_;
  const uint64_t least_puts_;
  Random random_;
  Rank::Window window_;
  std::vector<Pending> pending_;
  size_t turn_ = 0;
  Clock::time_point last_event_ = Clock::now();
  Stream streams_[kStreams];
  Slot slots_[kSlots];
  uint64_t put_ = 0;         // notified puts started
  uint64_t put_done_ = 0;    // completed here
  uint64_t answered_ = 0;    // taken by the other side
  std::vector<bool> taken_;  // notifications of the other's puts
  uint64_t taken_count_ = 0;
  std::deque<Held> held_;
  Track tracks_[kTracks];
  uint64_t add_begun_ = 0;
  uint64_t add_done_ = 0;
  uint64_t add_unknown_ = 0;
  std::vector<bool> previous_seen_;
  bool swapping_ = false;
  uint64_t swap_value_ = 0;
  uint64_t swap_previous_ = 0;
  uint64_t swap_unknown_ = 0;
  bool bye_sent_ = false;
  bool bye_seen_ = false;
  char bye_[2] = {};
};

void Mix::completed(size_t index, const hetcomm_completion_t& completion) {
  Pending ended = std::move(pending_[index]);
  pending_[index] = std::move(pending_.back());
  pending_.pop_back();
  last_event_ = Clock::now();
  const bool unknown = completion.status == HETCOMM_OUTCOME_UNKNOWN && ended.may_be_unknown;
  if (completion.status != HETCOMM_OK && !unknown) {
    fail("%s: %s: %s", ended.what, hetcomm_status_name(completion.status), completion.text);
  }
  ended.then(completion);
}

// --- messages ---------------------------------------------------------------

// The first word of a message is its index. A stream ends with one empty message per posted receive
// of the other side.
void Mix::send_messages() {
  for (uint64_t i = 0; i < kStreams; ++i) {
    Stream& stream = streams_[i];
    while (!stopping() && stream.under_way < kWindow) {
      const Put message = message_of(seed_, rank_.rank(), i, stream.sent);
      auto bytes = std::make_shared<std::vector<std::byte>>(message.length);
      fill(bytes->data(), bytes->size(), message.seed);
      ++stream.sent;
      ++stream.under_way;
      watch(rank_.send(i, bytes->data(), bytes->size()), "a send",
            [&stream, bytes](const hetcomm_completion_t&) { --stream.under_way; });
    }
    while (stopping() && stream.ends_sent < kWindow) {
      ++stream.ends_sent;
      ++stream.under_way;
      watch(rank_.send(i, nullptr, 0), "the end of a stream",
            [&stream](const hetcomm_completion_t&) { --stream.under_way; });
    }
  }
}

void Mix::post_receive(uint64_t i) {
  Stream& stream = streams_[i];
  const uint64_t index = stream.posted++;
  auto bytes = std::make_shared<std::vector<std::byte>>(kLargest);
  watch(rank_.receive(i, bytes->data(), bytes->size()), "a receive",
        [this, &stream, i, index, bytes](const hetcomm_completion_t& completion) {
          if (completion.bytes_sent == 0) {
            ++stream.ends;
            stream.first_end = std::min(stream.first_end, index);
            return;
          }
          const Put expected = message_of(seed_, rank_.peer(), i, index);
          if (index > stream.first_end) fail("stream %lu: a message after the end", i);
          if (completion.bytes_received != expected.length) {
            fail("stream %lu: message %lu has %lu bytes, not %lu", i, index,
                 completion.bytes_received, expected.length);
          }
          const uint64_t wrong = mismatch(bytes->data(), expected.length, expected.seed);
          if (wrong != expected.length) {
            fail("stream %lu: message %lu of %lu bytes is wrong: %s", i, index, expected.length,
                 explain_mismatch(bytes->data(), expected.length, expected.seed).c_str());
          }
          ++stream.received;
          post_receive(i);
        });
}

// --- notified puts ----------------------------------------------------------

void Mix::start_puts() {
  for (int begun = 0; begun < 4 && !stopping(); ++begun) {
    Slot& slot = slots_[put_ % kSlots];
    if (slot.busy || slot.putting) return;
    const Put put = put_of(seed_, rank_.rank(), put_);
    slot.bytes.resize(put.length);
    fill(slot.bytes.data(), put.length, put.seed);
    slot.busy = slot.putting = true;
    hetcomm_operation_options_t options{};
    options.struct_size = sizeof(options);
    options.flags = HETCOMM_OPERATION_NOTIFY;
    options.notify_value = put_;
    hetcomm_request_t* request = nullptr;
    CHECK(hetcomm_put(window_.remote, kFirstSlot + put_ % kSlots * kSlotBytes,
                      hetcomm_buffer_host(slot.bytes.data(), put.length), &options, &request));
    ++put_;
    watch(request, "a notified put", [this, &slot](const hetcomm_completion_t&) {
      slot.putting = false;
      ++put_done_;
    });
  }
}

void Mix::take_notifications() {
  for (int i = 0; i < 8; ++i) {
    hetcomm_notification_t note{};
    const hetcomm_status_t status =
        hetcomm_memory_wait_notification(window_.memory, HETCOMM_TIMEOUT_POLL, &note);
    if (status == HETCOMM_TIMED_OUT) return;
    check(status, "waiting for a notification");
    last_event_ = Clock::now();
    if (note.value >= taken_.size()) taken_.resize(note.value + 1);
    if (taken_[note.value]) fail("notification %lu came twice", note.value);
    taken_[note.value] = true;
    ++taken_count_;
    const Put put = put_of(seed_, rank_.peer(), note.value);
    const uint64_t offset = kFirstSlot + note.value % kSlots * kSlotBytes;
    if (note.length != put.length || note.offset != offset || note.source != rank_.peer()) {
      fail("notification %lu says %lu bytes at %lu from %d", note.value, note.length, note.offset,
           note.source);
    }
    const uint64_t wrong = mismatch(window_.bytes + offset, put.length, put.seed);
    if (wrong != put.length) {
      fail("put %lu of %lu bytes is wrong when its notification comes: %s", note.value, put.length,
           explain_mismatch(window_.bytes + offset, put.length, put.seed).c_str());
    }
    // From now on the bytes belong to the owner.
    std::memset(window_.bytes + offset, static_cast<int>(kPoison), put.length);
    const uint64_t hold_ms = random_.below(8) == 0 ? random_.below(400) : 0;
    held_.push_back({note.value, put.length, Clock::now() + std::chrono::milliseconds(hold_ms)});
  }
}

void Mix::release_slots() {
  for (size_t i = 0; i < held_.size();) {
    const Held held = held_[i];
    if (Clock::now() < held.until) {
      ++i;
      continue;
    }
    held_.erase(held_.begin() + static_cast<ptrdiff_t>(i));
    const std::byte* bytes = window_.bytes + kFirstSlot + held.index % kSlots * kSlotBytes;
    for (uint64_t at = 0; at < held.length; ++at) {
      if (bytes[at] != kPoison) {
        fail("put %lu of %lu bytes wrote byte %lu after its notification", held.index, held.length,
             at);
      }
    }
    auto answer = std::make_shared<uint64_t>(held.index);
    watch(rank_.send(kAckTag, answer.get(), sizeof(uint64_t)), "an answer to a put",
          [answer](const hetcomm_completion_t&) {});
  }
}

void Mix::post_answer_receive() {
  auto answer = std::make_shared<uint64_t>(0);
  watch(rank_.receive(kAckTag, answer.get(), sizeof(uint64_t)), "the answer to a put",
        [this, answer](const hetcomm_completion_t& completion) {
          if (completion.bytes_received == 0) return;  // an end message
          Slot& slot = slots_[*answer % kSlots];
          if (!slot.busy || *answer >= put_) fail("put %lu was answered twice", *answer);
          slot.busy = false;
          ++answered_;
          post_answer_receive();
        });
}

// --- put, then get ----------------------------------------------------------

void Mix::run_track(uint64_t index) {
  Track& track = tracks_[index];
  if (track.busy) return;
  if (track.again) {
    if (Clock::now() >= track.due) read_track(index);
    return;
  }
  if (stopping()) return;
  const uint64_t length = random_size(random_, 1, kTrackBytes);
  track.offset = random_.below(kTrackBytes - length + 1);
  track.out.resize(length);
  fill(track.out.data(), length, random_.next());
  track.busy = true;
  hetcomm_request_t* request = nullptr;
  CHECK(hetcomm_put(window_.remote, kFirstTrack + index * kTrackBytes + track.offset,
                    hetcomm_buffer_host(track.out.data(), length), nullptr, &request));
  watch(request, "a put", [this, index](const hetcomm_completion_t&) {
    tracks_[index].again = random_.below(4) == 0;
    tracks_[index].due = Clock::now() + std::chrono::milliseconds(random_.below(300));
    read_track(index);
  });
}

void Mix::read_track(uint64_t index) {
  Track& track = tracks_[index];
  const bool second = track.again && !track.busy;
  if (second) track.again = false;
  track.busy = true;
  track.in.assign(track.out.size(), std::byte{0});
  hetcomm_request_t* request = nullptr;
  CHECK(hetcomm_get(window_.remote, kFirstTrack + index * kTrackBytes + track.offset,
                    hetcomm_buffer_host(track.in.data(), track.in.size()), nullptr, &request));
  watch(request, "a get", [this, index, second](const hetcomm_completion_t&) {
    Track& own = tracks_[index];
    own.busy = false;
    ++own.rounds;
    if (own.in != own.out) {
      fail("a get of %zu bytes %s does not read what was put", own.in.size(),
           second ? "a while later" : "");
    }
  });
}

// --- atomics ----------------------------------------------------------------

void Mix::start_atomics() {
  while (!stopping() && add_begun_ - add_done_ - add_unknown_ < 3) {
    auto previous = std::make_shared<uint64_t>(UINT64_MAX);
    hetcomm_request_t* request = nullptr;
    CHECK(hetcomm_fetch_add(window_.remote, kAdded, 1, previous.get(), nullptr, &request));
    ++add_begun_;
    watch(
        request, "a fetch_add",
        [this, previous](const hetcomm_completion_t& completion) {
          if (completion.status != HETCOMM_OK) {
            ++add_unknown_;
            return;
          }
          ++add_done_;
          if (*previous >= add_begun_) fail("a fetch_add saw %lu of %lu", *previous, add_begun_);
          if (previous_seen_.size() <= *previous) previous_seen_.resize(*previous + 1);
          if (previous_seen_[*previous]) fail("two fetch_adds saw %lu", *previous);
          previous_seen_[*previous] = true;
        },
        true);
  }
  if (stopping() || swapping_) return;
  swapping_ = true;
  hetcomm_request_t* request = nullptr;
  CHECK(hetcomm_compare_swap(window_.remote, kSwapped, swap_value_, swap_value_ + 1,
                             &swap_previous_, nullptr, &request));
  watch(
      request, "a compare_swap",
      [this](const hetcomm_completion_t& completion) {
        swapping_ = false;
        if (completion.status != HETCOMM_OK) {
          ++swap_unknown_;
          return;
        }
        // After an unknown outcome the value may be one step further.
        if (swap_previous_ != swap_value_ &&
            (swap_unknown_ == 0 || swap_previous_ != swap_value_ + 1)) {
          fail("a compare_swap saw %lu where %lu is", swap_previous_, swap_value_);
        }
        ++swap_value_;
      },
      true);
}

// --- the whole run ----------------------------------------------------------

bool Mix::done() const {
  if (!stopping() || answered_ != put_ || put_done_ != put_ || !held_.empty()) return false;
  if (add_begun_ != add_done_ + add_unknown_ || swapping_) return false;
  for (const Stream& stream : streams_) {
    if (stream.under_way > 0 || stream.ends < kWindow || stream.ends_sent < kWindow) return false;
    if (stream.received != stream.first_end) return false;
  }
  for (const Track& track : tracks_) {
    if (track.busy || track.again) return false;
  }
  return true;
}

void Mix::report() {
  uint64_t sent = 0;
  uint64_t received = 0;
  for (const Stream& stream : streams_) {
    sent += stream.sent;
    received += stream.received;
  }
  say("MIX sent=%lu received=%lu puts=%lu answered=%lu notifications=%lu rounds=%lu adds=%lu "
      "unknown=%lu swaps=%lu",
      sent, received, put_, answered_, taken_count_, tracks_[0].rounds + tracks_[1].rounds,
      add_done_, add_unknown_ + swap_unknown_, swap_value_);
}

void Mix::stalled() {
  report();
  for (const Pending& each : pending_) say("PENDING %s", each.what);
  char text[4000];
  size_t size = 0;
  if (hetcomm_communicator_explain(rank_.world(), rank_.peer(), sizeof(text), text, &size) ==
      HETCOMM_OK) {
    say("EXPLAIN %s", text);
  }
  rank_.say_counters();
  fail("nothing has happened for %.0f s", kStallSeconds);
}

void Mix::run() {
  for (uint64_t i = 0; i < kStreams; ++i) {
    for (uint64_t k = 0; k < kWindow; ++k) post_receive(i);
  }
  post_answer_receive();
  post_answer_receive();
  watch(rank_.receive(kByeTag, &bye_[0], 1), "the other's end",
        [this](const hetcomm_completion_t&) { bye_seen_ = true; });
  say("READY");
  std::vector<hetcomm_request_t*> requests;
  Clock::time_point reported = Clock::now();
  while (!bye_sent_ || !bye_seen_) {
    send_messages();
    start_puts();
    take_notifications();
    release_slots();
    for (uint64_t i = 0; i < kTracks; ++i) run_track(i);
    start_atomics();
    if (!bye_sent_ && done()) {
      bye_sent_ = true;
      watch(rank_.send(kByeTag, &bye_[1], 1), "the end", [](const hetcomm_completion_t&) {});
      for (int i = 0; i < 2; ++i) {
        watch(rank_.send(kAckTag, nullptr, 0), "the end", [](const hetcomm_completion_t&) {});
      }
    }
    requests.clear();
    if (pending_.empty()) continue;
    // Starts at another request each time, because the first one that has ended is reported.
    const size_t first = ++turn_ % pending_.size();
    for (size_t i = 0; i < pending_.size(); ++i) {
      requests.push_back(pending_[(first + i) % pending_.size()].request);
    }
    size_t index = 0;
    hetcomm_completion_t completion;
    const hetcomm_status_t status =
        hetcomm_request_wait_any(requests.size(), requests.data(), 2'000'000, &index, &completion);
    if (status == HETCOMM_OK) {
      completed((first + index) % pending_.size(), completion);
    } else if (status != HETCOMM_TIMED_OUT) {
      check(status, "hetcomm_request_wait_any");
    }
    if (seconds_since(last_event_) > kStallSeconds) stalled();
    if (rank_.orders().ended && !rank_.orders().stop) fail("the test has gone");
    if (seconds_since(reported) > 5) {
      report();
      reported = Clock::now();
    }
  }
  while (!pending_.empty()) {
    const Pending last = pending_.back();
    rank_.finish(last.request, last.what);
    pending_.pop_back();
  }
  check_end();
}

void Mix::check_end() {
  rank_.barrier();
  hetcomm_notification_t note{};
  if (hetcomm_memory_wait_notification(window_.memory, 100'000'000, &note) != HETCOMM_TIMED_OUT) {
    fail("notification %lu has come after all", note.value);
  }
  uint64_t words[2] = {};
  const uint64_t offsets[2] = {kAdded, kSwapped};
  for (int i = 0; i < 2; ++i) {
    hetcomm_request_t* request = nullptr;
    CHECK(hetcomm_get(window_.remote, offsets[i], hetcomm_buffer_host(&words[i], 8), nullptr,
                      &request));
    rank_.finish(request, "reading a word");
  }
  if (words[0] < add_done_ || words[0] > add_done_ + add_unknown_) {
    fail("%lu fetch_adds and %lu with unknown outcome made %lu", add_done_, add_unknown_, words[0]);
  }
  if (words[1] < swap_value_ || words[1] > swap_value_ + swap_unknown_) {
    fail("%lu compare_swaps made %lu", swap_value_, words[1]);
  }
  report();
  rank_.barrier();
  rank_.say_counters();
  rank_.close_window(window_);
}

}  // namespace

void play_mix(Rank& rank, uint64_t seed, uint64_t least_puts) { Mix(rank, seed, least_puts).run(); }

}  // namespace hetcomm::test
