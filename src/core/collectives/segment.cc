#include "src/core/collectives/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <span>

#include <fmt/format.h>

#include "src/base/clock.h"
#include "src/base/copy.h"
#include "src/base/membarrier.h"
#include "src/base/random.h"

namespace hetcomm::collectives {
namespace {

// Of a ticket: the data behind it was written past the cache.
constexpr uint64_t kStreamedBit = uint64_t{1} << 63;
// Chunks of this length are measured, and may go past the cache.
constexpr uint64_t kLeastMeasured = 8u << 10;
// What is shorter has more edges than it is worth.
constexpr uint64_t kLeastStreamed = 2u << 10;
constexpr uint64_t kLine = 64;
// What fits beside the ticket.
constexpr size_t kInline = 48;
// Up to here every rank reduces everything: one round of tickets.
constexpr uint64_t kOnePhaseBytes = 4096;
constexpr uint64_t kOnePhaseBytesOfTwo = 128u << 10;
// Up to here it is the latency of a line that counts, and the cache that it is in.
constexpr uint64_t kLeastShift = 4096;
// Ranks that send each other blocks whose lengths not all of them know.
constexpr uint32_t kMaxRanksOfUnknownBlocks = 16;
// Chunks of one call: whoever drives it has other things to look at.
constexpr int kStepsAtOnce = 24;
// To whole lines.
constexpr uint64_t round_up(uint64_t bytes) {
  return bytes > UINT64_MAX - kLine ? UINT64_MAX : (bytes + kLine - 1) / kLine * kLine;
}
constexpr const char* kName = "hetcomm-collective";

// Of the cache that all cores share.
uint64_t last_cache_bytes() {
  static const uint64_t bytes = [] {
    constexpr uint64_t kUsual = 32u << 20;
#ifdef _SC_LEVEL3_CACHE_SIZE
    const long found = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (found > 0) return static_cast<uint64_t>(found);
#endif
    return kUsual;
  }();
  return bytes;
}

}  // namespace

struct Segment::Header {
  uint64_t nonce[2];
  alignas(64) std::atomic<uint64_t> sleepers[kMostRanks / 64];
};

// The ticket, what is compared and short data are one line; what is seldom read is on others.
struct Segment::Slot {
  std::atomic<uint64_t> in;
  uint64_t hash;
  std::byte few[kInline];
  alignas(64) uint64_t sequence;
  Call call;
  alignas(64) std::atomic<uint64_t> mid;
  alignas(64) std::byte bytes[kSlotBytes];
};

uint64_t Segment::slots_at(uint32_t ranks) {
  constexpr uint64_t kPage = 4096;
  return (sizeof(Header) + ranks * sizeof(ReadCosts) + kPage - 1) / kPage * kPage;
}

Segment::Header& Segment::header() const { return *reinterpret_cast<Header*>(base_); }

std::atomic<uint64_t>& Segment::sleepers(size_t word) const { return header().sleepers[word]; }

ReadCosts& Segment::read_costs(uint32_t rank) const {
  return reinterpret_cast<ReadCosts*>(base_ + sizeof(Header))[rank];
}

// Together they stay within bounds; what is not used of them is no memory.
uint32_t Segment::slots_for(uint32_t ranks) { return ranks <= 32 ? 16 : ranks <= 64 ? 8 : 4; }

uint64_t Segment::size_for(uint32_t ranks) {
  return slots_at(ranks) + uint64_t{ranks} * slots_for(ranks) * sizeof(Slot);
}

Segment::Segment(uint32_t ranks, uint32_t index, UniqueFd file, std::byte* base, uint64_t size)
    : ranks_(ranks),
      index_(index),
      slots_(slots_for(ranks)),
      words_((ranks + 63) / 64),
      file_(std::move(file)),
      base_(base),
      size_(size),
      ways_(read_costs(index)) {}

Segment::~Segment() { munmap(base_, size_); }

Result<std::unique_ptr<Segment>> Segment::create(uint32_t ranks, SegmentOffer* offer) {
  UniqueFd file(memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return status_from_errno(errno, "memfd_create");
  const uint64_t size = size_for(ranks);
  if (ftruncate(file.get(), static_cast<off_t>(size)) != 0 ||
      fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return status_from_errno(errno, kName);
  }
  HETCOMM_RETURN_IF_ERROR(fill_random(std::as_writable_bytes(std::span(offer->nonce))));
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (base == MAP_FAILED) return status_from_errno(errno, kName);
  std::memcpy(base, offer->nonce, sizeof(offer->nonce));
  offer->process = getpid();
  offer->file = file.get();
  offer->usable = 1;
  return std::unique_ptr<Segment>(
      new Segment(ranks, 0, std::move(file), static_cast<std::byte*>(base), size));
}

Result<std::unique_ptr<Segment>> Segment::open(uint32_t ranks, uint32_t index,
                                               const SegmentOffer& offer) {
  const std::string path = fmt::format("/proc/{}/fd/{}", offer.process, offer.file);
  std::array<char, 64> target{};
  // Another process may have that number in another namespace: its files are left alone.
  if (readlink(path.c_str(), target.data(), target.size() - 1) < 0) {
    return status_from_errno(errno, path);
  }
  if (std::strstr(target.data(), kName) == nullptr) {
    return Status(Code::kNotFound, path + " is another file");
  }
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return status_from_errno(errno, path);
  const uint64_t size = size_for(ranks);
  struct stat info {};
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (fstat(file.get(), &info) != 0 || static_cast<uint64_t>(info.st_size) != size || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0) {
    return Status(Code::kNotFound, path + " is another file");
  }
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (base == MAP_FAILED) return status_from_errno(errno, path);
  std::unique_ptr<Segment> segment(
      new Segment(ranks, index, std::move(file), static_cast<std::byte*>(base), size));
  if (std::memcmp(base, offer.nonce, sizeof(offer.nonce)) != 0) {
    return Status(Code::kNotFound, path + " is another segment");
  }
  return segment;
}

void Segment::complete(bool fences) {
  inputs_.resize(ranks_);
  fences_ = fences;
  file_.reset();
}

// --- sleep ------------------------------------------------------------------

bool Segment::announce_sleep(bool short_sleep) {
  announced_ = true;
  sleepers(index_ / 64).fetch_or(own_bit(index_ / 64), std::memory_order_seq_cst);
  // A short sleep may miss a ticket: it is short.
  return fences_ || short_sleep || global_membarrier();
}

void Segment::end_sleep() {
  announced_ = false;
  sleepers(index_ / 64).fetch_and(~own_bit(index_ / 64), std::memory_order_relaxed);
}

// After a ticket.
void Segment::look_for_sleepers() {
  if (fences_) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
  } else {
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  uint64_t bits = 0;
  for (size_t word = 0; word < words_; ++word) {
    bits |= sleepers(word).load(std::memory_order_relaxed) & ~own_bit(word);
  }
  if (bits != 0) [[unlikely]]
    woken_ = true;
}

// --- one operation ----------------------------------------------------------

bool Segment::carries(const Call& call, uint32_t ranks) {
  // An algorithm that was asked for is one of messages.
  if (call.algorithm != Algorithm::kChosen || call.monitored != 0) return false;
  // The longest block says how many chunks all ranks go through: where one pair has all there is,
  // the more ranks the longer, since each has its share of a slot.
  return blocks_are_known(call.kind) || !sends_blocks(call.kind) ||
         ranks <= kMaxRanksOfUnknownBlocks;
}

Segment::Slot& Segment::slot(uint32_t rank, uint64_t chunk) const {
  auto* slots = reinterpret_cast<Slot*>(base_ + slots_at(ranks_));
  return slots[rank * slots_ + ((done_ + chunk) & (slots_ - 1))];
}

std::byte* Segment::bytes_of(uint32_t rank, uint64_t chunk) const {
  return slot(rank, chunk).bytes + shift_;
}

uint64_t Segment::longest_through_slots(const Problem& problem) const {
  if (!sends_many(problem.kind) && !receives_many(problem.kind)) return problem.bytes;
  if (problem.kind == Kind::kGatherv) return index_ == problem.root ? 0 : problem.bytes;
  const std::span<const uint64_t> blocks =
      problem.kind == Kind::kAllgatherv ? problem.receive_blocks : problem.send_blocks;
  uint64_t longest = 0;
  for (uint32_t block = 0; block < blocks.size(); ++block) {
    // The own one stays here; of those that all know all ranks reckon alike.
    if (!tells_lengths_ || block != index_) longest = std::max(longest, blocks[block]);
  }
  return longest;
}

// What all ranks send and receive, as if the others had what this one has.
uint64_t Segment::moved_bytes(const Problem& problem) const {
  const auto total = [this, &problem](bool has_blocks, std::span<const uint64_t> blocks) {
    if (!has_blocks) return problem.bytes;
    return blocks.empty() ? problem.bytes * ranks_
                          : std::accumulate(blocks.begin(), blocks.end(), uint64_t{0});
  };
  const uint64_t sent = total(sends_blocks(problem.kind), problem.send_blocks);
  const uint64_t received = total(receives_blocks(problem.kind), problem.receive_blocks);
  switch (problem.kind) {
    case Kind::kBroadcast:
      return ranks_ * received;
    case Kind::kGather:
    case Kind::kGatherv:
    case Kind::kScatter:
    case Kind::kScatterv:
      // What the root has once the others have together.
      return 2 * std::max(sent, received);
    default:
      return ranks_ * (sent + received);
  }
}

void Segment::start(const Task& task, bool checks) {
  // Nobody has arranged to be woken for this one.
  if (announced_) end_sleep();
  const Problem& problem = task.problem();
  const Kind kind = problem.kind;
  task_ = &task;
  checks_ = checks;
  // Another order is a difference too.
  hash_ = checks ? mix(task.call().hash(), task.sequence()) : 0;
  element_ = problem.element_bytes;
  // Of two ranks each reads as much of the other either way, but every rank sums half.
  two_phases_ = kind == Kind::kAllreduce &&
                problem.bytes > (ranks_ > 2 ? kOnePhaseBytes : kOnePhaseBytesOfTwo);
  tells_lengths_ = !blocks_are_known(kind);
  longest_ = longest_through_slots(problem);
  region_head_ = tells_lengths_ ? kLine : 0;
  // A slot has a region for each block that is sent.
  const uint64_t regions = sends_blocks(kind) ? ranks_ : 1;
  const uint64_t most = kSlotBytes / regions / kLine * kLine - region_head_;
  chunk_bytes_ = tells_lengths_ ? most : std::clamp(round_up(longest_), kLine, most);
  chunks_ = chunks_for(longest_);
  // Those that all know to be shorter use all of the slots' memory too, each time another block.
  const uint64_t used = std::bit_ceil(regions * (region_head_ + chunk_bytes_));
  measures_ = std::min(chunk_bytes_, longest_) >= kLeastMeasured;
  shift_ = used < kLeastShift ? 0 : done_ / slots_ * used % kSlotBytes;
  passes_caches_ = chunk_bytes_ >= kLeastStreamed && moved_bytes(problem) >= last_cache_bytes();
  published_ = reduced_ = consumed_ = 0;
  seen_in_ = seen_mid_ = 0;
}

Segment::Outcome Segment::advance() {
  bool moved = false;
  for (int steps = 0; consumed_ < chunks_; ++steps) {
    if (steps == kStepsAtOnce) return Outcome::kMoved;
    if (!step()) {
      if (task_ == nullptr) return Outcome::kMismatch;
      return moved ? Outcome::kMoved : Outcome::kWaits;
    }
    moved = true;
  }
  done_ += chunks_;
  task_ = nullptr;
  return Outcome::kDone;
}

bool Segment::step() {
  if (published_ < chunks_ && published_ < consumed_ + slots_ / 2) {
    publish(published_++);
    look_for_sleepers();
    return true;
  }
  if (two_phases_) {
    if (reduced_ < published_ && all_in(reduced_)) {
      seen_in_ = 0;
      reduce_piece(reduced_++);
      look_for_sleepers();
      return true;
    }
    if (consumed_ == reduced_ || !all_mid(consumed_)) return false;
    seen_mid_ = 0;
  } else {
    if (!all_in(consumed_)) return false;
    seen_in_ = 0;
  }
  measure_reading([this] { consume(consumed_); });
  ++consumed_;
  return true;
}

bool Segment::has_ticket(uint32_t rank, uint64_t chunk) const {
  return (slot(rank, chunk).in.load(std::memory_order_acquire) & ~kStreamedBit) ==
         done_ + chunk + 1;
}

bool Segment::all_in(uint64_t chunk) {
  for (; seen_in_ < ranks_; ++seen_in_) {
    if (!has_ticket(seen_in_, chunk)) return false;
    if (chunk == 0 && !agrees(seen_in_)) {
      drop();
      return false;
    }
  }
  return true;
}

// What another rank has written in its first chunk fits to what was called here.
bool Segment::agrees(uint32_t rank) {
  const Slot& theirs = slot(rank, 0);
  if (checks_ && theirs.hash != hash_) {
    mismatch_ = {};
    mismatch_.peer = rank;
    mismatch_.sequence = theirs.sequence;
    std::memcpy(&mismatch_.call, &theirs.call, sizeof(Call));
    if (static_cast<size_t>(mismatch_.call.kind) >= kKinds) mismatch_.call = Call();
    return false;
  }
  if (!tells_lengths_) return true;
  uint64_t longest;
  std::memcpy(&longest, theirs.few, sizeof(longest));
  chunks_ = std::max(chunks_, chunks_for(longest));
  const Problem& problem = task_->problem();
  const bool gathers = receives_blocks(problem.kind);
  const bool scatters = sends_blocks(problem.kind);
  if (rank == index_ || (!gathers && rank != problem.root) ||
      (!scatters && index_ != problem.root)) {
    return true;
  }
  const uint64_t expected = gathers ? problem.receive_block(rank) : problem.bytes;
  uint64_t sent;
  std::memcpy(&sent, length_at(rank, scatters ? index_ : 0), sizeof(sent));
  if (sent == expected) return true;
  mismatch_ = {};
  mismatch_.peer = rank;
  mismatch_.in_length = true;
  mismatch_.sent = sent;
  mismatch_.expected = expected;
  return false;
}

bool Segment::all_mid(uint64_t chunk) {
  const uint64_t ticket = done_ + chunk + 1;
  for (; seen_mid_ < ranks_; ++seen_mid_) {
    if (slot(seen_mid_, chunk).mid.load(std::memory_order_acquire) != ticket) return false;
  }
  return true;
}

std::vector<uint32_t> Segment::missing() const {
  std::vector<uint32_t> ranks;
  if (task_ == nullptr) return ranks;
  const uint64_t in = two_phases_ && reduced_ < published_ ? reduced_ : consumed_;
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    const bool late = !has_ticket(rank, in);
    const bool late_part =
        two_phases_ && consumed_ < reduced_ &&
        slot(rank, consumed_).mid.load(std::memory_order_acquire) != done_ + consumed_ + 1;
    if (late || late_part) ranks.push_back(rank);
  }
  return ranks;
}

// Whether the whole of an allreduce fits beside the ticket; not the rest of a long one.
bool Segment::in_few(uint64_t length) const { return chunks_ == 1 && length <= kInline; }

uint64_t Segment::chunks_for(uint64_t block_bytes) const {
  return std::max<uint64_t>(1, (block_bytes + chunk_bytes_ - 1) / chunk_bytes_);
}

// Where |rank| writes how long one of its blocks is.
std::byte* Segment::length_at(uint32_t rank, uint32_t block) const {
  return bytes_of(rank, 0) + region(block) - kLine;
}

// Bytes of chunk |chunk| of a block of |block_bytes|.
uint64_t Segment::length_of(uint64_t block_bytes, uint64_t chunk) const {
  const uint64_t from = std::min(chunk * chunk_bytes_, block_bytes);
  return std::min(chunk_bytes_, block_bytes - from);
}

// First byte of one of the pieces, one for each rank, that a chunk's sum is made in: whole lines.
uint64_t Segment::piece_begin(uint64_t length, uint32_t piece) const {
  if (piece == ranks_) return length;
  const uint64_t lines = length / kLine;
  return lines * piece / ranks_ * kLine;
}

// --- ways to write ----------------------------------------------------------

WriteWay Segment::choose_way() {
  if (!measures_) return WriteWay::kCached;
  return ways_.next([this](WriteWay way) {
    uint32_t most = 0;
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      if (rank == index_) continue;
      const auto& costs = read_costs(rank).by_way;
      most = std::max(most, costs[static_cast<size_t>(way)].load(std::memory_order_relaxed));
    }
    return most;
  });
}

// As the ticket, which is there, says.
WriteWay Segment::way_of(uint32_t rank, uint64_t chunk) const {
  const uint64_t ticket = slot(rank, chunk).in.load(std::memory_order_relaxed);
  return (ticket & kStreamedBit) != 0 ? WriteWay::kStreamed : WriteWay::kCached;
}

// Short ones are written in the way of their chunk, and say nothing of what it costs.
void Segment::write(std::byte* to, const std::byte* from, uint64_t length) {
  if (!measures_) {
    std::memcpy(to, from, length);
    return;
  }
  const uint64_t start = ticks();
  if (way_ == WriteWay::kStreamed) {
    copy_streaming(to, from, length);
  } else {
    std::memcpy(to, from, length);
  }
  if (length >= kLeastMeasured) ways_.wrote(way_, length, ticks() - start);
}

// To where the result goes.
void Segment::deliver(std::byte* to, const std::byte* from, uint64_t length) {
  if (passes_caches_ && length >= kLeastStreamed) {
    copy_streaming(to, from, length);
  } else {
    std::memcpy(to, from, length);
  }
}

void Segment::note_read(uint32_t rank, uint64_t chunk, uint64_t bytes) {
  if (!measures_ || rank == index_) return;
  bytes_read_[static_cast<size_t>(way_of(rank, chunk))] += bytes;
}

// Of what was written in one way only.
template <typename Read>
void Segment::measure_reading(Read&& read) {
  if (!measures_) {
    read();
    return;
  }
  bytes_read_ = {};
  const uint64_t start = ticks();
  read();
  const uint64_t took = ticks() - start;
  for (const WriteWay way : {WriteWay::kCached, WriteWay::kStreamed}) {
    const uint64_t bytes = bytes_read_[static_cast<size_t>(way)];
    const uint64_t other = bytes_read_[1 - static_cast<size_t>(way)];
    if (bytes >= kLeastMeasured && other == 0) ways_.read(way, bytes, took);
  }
}

// --- chunks -----------------------------------------------------------------

void Segment::publish_bytes(uint64_t at, uint32_t block, uint64_t chunk, uint64_t length) {
  if (length == 0) return;
  const bool broadcast = task_->problem().kind == Kind::kBroadcast;
  const std::byte* from = broadcast ? task_->receive_address(block) : task_->send_address(block);
  write(bytes_of(index_, chunk) + at, from + chunk * chunk_bytes_, length);
}

void Segment::publish_block(uint32_t block, uint64_t chunk, uint64_t bytes) {
  if (tells_lengths_ && chunk == 0) std::memcpy(length_at(index_, block), &bytes, sizeof(bytes));
  publish_bytes(region(block), block, chunk, length_of(bytes, chunk));
}

void Segment::publish_all_but_own_piece(uint64_t chunk, uint64_t length) {
  std::byte* const out = bytes_of(index_, chunk);
  const std::byte* from = task_->send_address(0) + chunk * chunk_bytes_;
  const uint64_t begin = piece_begin(length, index_);
  const uint64_t end = piece_begin(length, index_ + 1);
  if (begin > 0) write(out, from, begin);
  if (end < length) write(out + end, from + end, length - end);
}

void Segment::publish(uint64_t chunk) {
  const Problem& problem = task_->problem();
  Slot& own = slot(index_, chunk);
  const bool at_root = problem.rank == problem.root;
  const uint64_t length = length_of(problem.bytes, chunk);
  way_ = choose_way();
  switch (problem.kind) {
    case Kind::kBarrier:
      break;
    case Kind::kBroadcast:
      if (at_root) publish_bytes(0, 0, chunk, length);
      break;
    case Kind::kAllreduce:
      if (!two_phases_) {
        if (in_few(length)) {
          if (length > 0) std::memcpy(own.few, task_->send_address(0), length);
        } else {
          publish_bytes(0, 0, chunk, length);
        }
      } else {
        publish_all_but_own_piece(chunk, length);
      }
      break;
    case Kind::kReduce:
      if (!at_root) publish_bytes(0, 0, chunk, length);
      break;
    case Kind::kAllgather:
    case Kind::kAllgatherv:
    case Kind::kScan:
      publish_bytes(0, 0, chunk, length);
      break;
    case Kind::kGather:
    case Kind::kGatherv:
      if (!at_root) publish_block(0, chunk, problem.bytes);
      break;
    case Kind::kScatter:
    case Kind::kScatterv:
      if (!at_root) break;
      [[fallthrough]];
    default:
      for (uint32_t block = 0; block < ranks_; ++block) {
        if (block != index_) publish_block(block, chunk, problem.send_block(block));
      }
  }
  if (chunk == 0 && checks_) {
    own.hash = hash_;
    own.sequence = task_->sequence();
    std::memcpy(&own.call, &task_->call(), sizeof(Call));
  }
  if (chunk == 0 && tells_lengths_) std::memcpy(own.few, &longest_, sizeof(longest_));
  own.in.store((done_ + chunk + 1) | (way_ == WriteWay::kStreamed ? kStreamedBit : 0),
               std::memory_order_release);
}

// Sums |bytes| of the slots of the first |ranks| ranks, in their order; |own| stands for this
// one's.
void Segment::sum(std::byte* out, uint64_t bytes, uint32_t ranks, const std::byte* own, uint64_t at,
                  uint64_t chunk) {
  if (bytes == 0) return;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    inputs_[rank] = rank == index_ ? own : bytes_of(rank, chunk) + at;
    note_read(rank, chunk, bytes);
  }
  reduce::reduce(task_->reduction(), out, inputs_.data(), ranks, bytes / element_);
}

void Segment::reduce_piece(uint64_t chunk) {
  const uint64_t length = length_of(task_->problem().bytes, chunk);
  const uint64_t begin = piece_begin(length, index_);
  const uint64_t end = piece_begin(length, index_ + 1);
  const std::byte* from = task_->send_address(0) + chunk * chunk_bytes_ + begin;
  std::byte* to = task_->receive_address(0) + chunk * chunk_bytes_ + begin;
  if (end > begin) {
    measure_reading([&] { sum(to, end - begin, ranks_, from, begin, chunk); });
    way_ = way_of(index_, chunk);
    write(bytes_of(index_, chunk) + begin, to, end - begin);
  }
  slot(index_, chunk).mid.store(done_ + chunk + 1, std::memory_order_release);
}

// From what |writer| has written.
void Segment::copy_out(uint32_t block, uint64_t chunk, uint32_t writer) {
  const Problem& problem = task_->problem();
  const uint64_t bytes =
      receives_blocks(problem.kind) ? problem.receive_block(block) : problem.bytes;
  const uint64_t length = length_of(bytes, chunk);
  if (length == 0) return;
  const std::byte* from = bytes_of(writer, chunk) + region(sends_blocks(problem.kind) ? index_ : 0);
  deliver(task_->receive_address(block) + chunk * chunk_bytes_, from, length);
  note_read(writer, chunk, length);
}

// This rank's own block, which goes through no slot and may be longer than those that do: with the
// last chunk goes all that is left.
void Segment::keep_own_block(uint64_t chunk) {
  const Problem& problem = task_->problem();
  const bool scatters = sends_blocks(problem.kind);
  const uint64_t bytes = scatters ? problem.send_block(index_) : problem.bytes;
  const uint64_t offset = std::min(chunk * chunk_bytes_, bytes);
  const uint64_t length = chunk + 1 == chunks_ ? bytes - offset : length_of(bytes, chunk);
  if (length == 0) return;
  const std::byte* from = task_->send_address(scatters ? index_ : 0) + offset;
  std::byte* to = task_->receive_address(receives_blocks(problem.kind) ? index_ : 0) + offset;
  if (to != from) deliver(to, from, length);
}

// A block from each rank, or this rank's from the one of the root.
void Segment::consume_blocks(uint64_t chunk) {
  const Problem& problem = task_->problem();
  const bool gathers = receives_blocks(problem.kind);
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    if (!gathers && rank != problem.root) continue;
    if (rank == index_) {
      keep_own_block(chunk);
    } else {
      copy_out(gathers ? rank : 0, chunk, rank);
    }
  }
}

// The pieces that the other ranks have summed; the own one is there.
void Segment::consume_pieces(uint64_t chunk) {
  const uint64_t length = length_of(task_->problem().bytes, chunk);
  std::byte* to = task_->receive_address(0) + chunk * chunk_bytes_;
  for (uint32_t distance = 1; distance < ranks_; ++distance) {
    const uint32_t rank = (index_ + distance) % ranks_;
    const uint64_t begin = piece_begin(length, rank);
    const uint64_t bytes = piece_begin(length, rank + 1) - begin;
    if (bytes == 0) continue;
    deliver(to + begin, bytes_of(rank, chunk) + begin, bytes);
    note_read(rank, chunk, bytes);
  }
}

void Segment::consume_few(std::byte* to, uint64_t length, uint64_t chunk) {
  std::array<std::byte, kInline> total;
  for (uint32_t rank = 0; rank < ranks_; ++rank) inputs_[rank] = slot(rank, chunk).few;
  reduce::reduce(task_->reduction(), total.data(), inputs_.data(), ranks_, length / element_);
  std::memcpy(to, total.data(), length);
}

void Segment::consume_sum(uint64_t chunk) {
  const Problem& problem = task_->problem();
  const uint64_t offset = chunk * chunk_bytes_;
  const uint64_t length = length_of(problem.bytes, chunk);
  if (length == 0) return;
  std::byte* to = task_->receive_address(0) + offset;
  const bool blocks = sends_blocks(problem.kind);
  const std::byte* own = task_->send_address(blocks ? index_ : 0) + offset;
  if (problem.kind == Kind::kAllreduce && in_few(length)) {
    consume_few(to, length, chunk);
    return;
  }
  if (problem.kind == Kind::kScan) {
    const bool exclusive = problem.exclusive;
    if (exclusive && index_ == 0) return;
    sum(to, length, exclusive ? index_ : index_ + 1, own, 0, chunk);
    return;
  }
  sum(to, length, ranks_, own, blocks ? region(index_) : 0, chunk);
}

void Segment::consume(uint64_t chunk) {
  const Problem& problem = task_->problem();
  const bool at_root = problem.rank == problem.root;
  switch (problem.kind) {
    case Kind::kBarrier:
      return;
    case Kind::kBroadcast:
      if (!at_root) copy_out(0, chunk, problem.root);
      return;
    case Kind::kAllreduce:
      return two_phases_ ? consume_pieces(chunk) : consume_sum(chunk);
    case Kind::kReduce:
      if (at_root) consume_sum(chunk);
      return;
    case Kind::kReduceScatter:
    case Kind::kReduceScatterv:
    case Kind::kScan:
      return consume_sum(chunk);
    case Kind::kGather:
    case Kind::kGatherv:
      if (at_root) consume_blocks(chunk);
      return;
    default:
      return consume_blocks(chunk);
  }
}

}  // namespace hetcomm::collectives
