// Small files: a file of the maximum allowed length is read completely, a longer one not at all.
// Files that others can write are refused, and so are private files that a group can write or
// another user owns. Only regular files are read, and reading never blocks.
#include "src/system/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "src/system/unique_fd.h"

namespace hetcomm {
namespace {

class SmallFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "hetcomm-small-file-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    (void)unlink(path().c_str());
    (void)rmdir(folder_.c_str());
  }
  std::string path() const { return folder_ + "/file"; }
  void write(const std::string& contents, mode_t mode = 0600) {
    const UniqueFd file(open(path().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    ASSERT_EQ(::write(file.get(), contents.data(), contents.size()),
              static_cast<ssize_t>(contents.size()));
    ASSERT_EQ(fchmod(file.get(), mode), 0);
  }
  Result<SmallFile> read(size_t most = 100) { return read_small_file(path(), most, "FILE"); }
  Result<SmallFile> read_private(size_t most = 100) {
    return read_private_file(path(), most, "FILE");
  }

 private:
  std::string folder_;
};

TEST_F(SmallFileTest, FileOverTheLengthLimitIsRefused) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{99}, size_t{100}}) {
    write(std::string(size, 'x'));
    for (const auto& file : {read(), read_private()}) {
      ASSERT_TRUE(file.ok()) << size;
      EXPECT_EQ(file.value().contents, std::string(size, 'x'));
    }
  }
  for (const size_t size : {size_t{101}, size_t{102}, size_t{100'000}}) {
    write(std::string(size, 'x'));
    for (const auto& file : {read(), read_private()}) {
      ASSERT_FALSE(file.ok()) << size;
      EXPECT_NE(file.status().text().find("more than 100 bytes"), std::string_view::npos);
      EXPECT_TRUE(file.status().text().starts_with("FILE"));
    }
  }
}

TEST_F(SmallFileTest, FileWritableByOthersIsRefused) {
  for (mode_t mode = 0400; mode <= 0777; ++mode) {
    if ((mode & 0400) == 0) continue;
    write("x", mode);
    const bool all = (mode & S_IWOTH) != 0;
    const bool group = (mode & S_IWGRP) != 0;
    const Result<SmallFile> plain = read();
    ASSERT_EQ(plain.ok(), !all) << std::oct << mode;
    const Result<SmallFile> own = read_private();
    ASSERT_EQ(own.ok(), !all && !group) << std::oct << mode;
    const auto expected = [](bool refused) {
      return refused ? Code::kPermissionDenied : Code::kOk;
    };
    EXPECT_EQ(plain.status().code(), expected(all));
    EXPECT_EQ(own.status().code(), expected(all || group));
    if (own.ok()) {
      EXPECT_EQ(own.value().everybody_reads, (mode & S_IROTH) != 0);
    }
    ASSERT_EQ(unlink(path().c_str()), 0);
  }
}

TEST_F(SmallFileTest, PrivateFileOfAnotherUserIsRefused) {
  write("x");
  if (chown(path().c_str(), 12345, static_cast<gid_t>(-1)) != 0) {
    GTEST_SKIP() << "this user cannot give files away";
  }
  const Result<SmallFile> file = read_private();
  EXPECT_EQ(file.status().code(), Code::kPermissionDenied);
  EXPECT_NE(file.status().text().find("12345"), std::string_view::npos) << file.status().text();
  EXPECT_TRUE(read().ok());
}

TEST_F(SmallFileTest, MissingFilesFifosAndDirectoriesAreRefused) {
  EXPECT_EQ(read().status().code(), Code::kNotFound);
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  EXPECT_EQ(read().status().code(), Code::kInvalidArgument);
  ASSERT_EQ(unlink(path().c_str()), 0);
  ASSERT_EQ(mkdir(path().c_str(), 0700), 0);
  EXPECT_EQ(read().status().code(), Code::kInvalidArgument);
  ASSERT_EQ(rmdir(path().c_str()), 0);
}

}  // namespace
}  // namespace hetcomm
