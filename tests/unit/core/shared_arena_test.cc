// Shared memory for collective operations, as offered and opened:
//
//   * an opened offer is mapped
//   * memory with another nonce, name or length, or without its seals, is not mapped
#include "src/core/collectives/shared_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <climits>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "src/system/unique_fd.h"

namespace hetcomm::collectives {
namespace {

constexpr uint32_t kRanks = 3;

// Returns how many times a file with |name| is mapped in this process.
int mappings(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(name) != std::string::npos) ++count;
  }
  return count;
}

class SharedArenaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = SharedArena::create(kRanks, &offer_);
    ASSERT_TRUE(made.ok()) << made.status().text();
    arena_.emplace(std::move(made).value());
    ASSERT_EQ(offer_.usable, 1u);
    ASSERT_EQ(mappings(kName), 1);
  }

  static Code open(const ArenaOffer& offer, uint32_t ranks = kRanks) {
    return SharedArena::open(ranks, offer).status().code();
  }
  // Returns the offered file's length.
  uint64_t size() const { return static_cast<uint64_t>(lseek(file(), 0, SEEK_END)); }
  int file() const { return static_cast<int>(offer_.file); }
  // Returns an offer of another file that begins with the nonce.
  ArenaOffer offer_of(const char* name, uint64_t size, int seals) {
    const UniqueFd& made = files_.emplace_back(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_TRUE(made.valid());
    EXPECT_EQ(ftruncate(made.get(), static_cast<off_t>(size)), 0);
    EXPECT_EQ(pwrite(made.get(), offer_.nonce, sizeof(offer_.nonce), 0),
              static_cast<ssize_t>(sizeof(offer_.nonce)));
    EXPECT_EQ(fcntl(made.get(), F_ADD_SEALS, seals), 0);
    ArenaOffer other = offer_;
    other.file = made.get();
    return other;
  }

  static constexpr const char* kName = "hetcomm-collective";
  static constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  ArenaOffer offer_;
  std::optional<SharedArena> arena_;
  std::vector<UniqueFd> files_;
};

TEST_F(SharedArenaTest, ArenaIsMappedFromItsOffer) {
  {
    auto found = SharedArena::open(kRanks, offer_);
    ASSERT_TRUE(found.ok()) << found.status().text();
    EXPECT_EQ(mappings(kName), 2);
    const SharedArena moved(std::move(found).value());
    EXPECT_EQ(mappings(kName), 2);
  }
  EXPECT_EQ(mappings(kName), 1);
}

TEST_F(SharedArenaTest, ArenaWithAnotherNonceIsNotMapped) {
  for (size_t bit = 0; bit < sizeof(offer_.nonce) * CHAR_BIT; ++bit) {
    ArenaOffer wrong = offer_;
    wrong.nonce[bit / 64] ^= uint64_t{1} << bit % 64;
    EXPECT_EQ(open(wrong), Code::kNotFound) << "bit " << bit;
  }
  EXPECT_EQ(mappings(kName), 1) << "what was refused stays mapped";
}

TEST_F(SharedArenaTest, ArenaThatDiffersFromItsOfferIsNotMapped) {
  EXPECT_EQ(open(offer_of(kName, size(), kSeals)), Code::kOk) << "what the next ones differ from";
  EXPECT_NE(open(offer_, kRanks - 1), Code::kOk);
  EXPECT_NE(open(offer_, kRanks + 1), Code::kOk);
  EXPECT_NE(open(offer_of("hetcomm-other", size(), kSeals)), Code::kOk);
  EXPECT_NE(open(offer_of(kName, size() - 4096, kSeals)), Code::kOk);
  EXPECT_NE(open(offer_of(kName, size() + 1, kSeals)), Code::kOk);
  EXPECT_NE(open(offer_of(kName, size(), F_SEAL_GROW)), Code::kOk)
      << "its owner could make it shorter";
  ArenaOffer gone = offer_;
  gone.file = 987'654;
  EXPECT_NE(open(gone), Code::kOk);
}

}  // namespace
}  // namespace hetcomm::collectives
