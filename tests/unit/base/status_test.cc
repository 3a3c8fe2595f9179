// Status: one table has value, name and text. A failure keeps its code when context is added. errno
// values map to the code that tells a caller how to react.
#include "src/base/status.h"

#include <cerrno>
#include <memory>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

struct Row {
  Code code;
  int32_t value;
  const char* name;
  const char* text;
};

constexpr Row kRows[] = {
#define HETCOMM_TEST_ROW(name, value, text) {static_cast<Code>(value), value, #name, text},
    HETCOMM_STATUS_MAP(HETCOMM_TEST_ROW)
#undef HETCOMM_TEST_ROW
};

TEST(Status, EveryCodeHasItsNameAndText) {
  for (const Row& row : kRows) {
    EXPECT_STREQ(code_name(row.code), row.name);
    EXPECT_STREQ(code_text(row.code), row.text);
    EXPECT_NE(std::string(row.text), "");
  }
}

TEST(Status, ValuesAndNamesAreUnique) {
  std::set<int32_t> values;
  std::set<std::string> names;
  for (const Row& row : kRows) {
    EXPECT_TRUE(values.insert(row.value).second) << row.name;
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
  }
}

TEST(Status, ValuesStayInTheirReservedRange) {
  for (const Row& row : kRows) {
    EXPECT_LE(row.value, 1) << row.name;
    EXPECT_GE(row.value, -99) << row.name;
  }
  EXPECT_EQ(HETCOMM_OK, 0);
  EXPECT_EQ(HETCOMM_PENDING, 1);
  EXPECT_LE(HETCOMM_PEER_LOST, -40);
  EXPECT_LE(HETCOMM_DEVICE_LOST, -60);
  EXPECT_LE(HETCOMM_CONTEXT_FAILED, -80);
}

TEST(Status, UnknownCodesAreNamedUnknown) {
  for (const int32_t value : {2, 999, -39, -100, INT32_MAX, INT32_MIN}) {
    EXPECT_STREQ(code_name(static_cast<Code>(value)), "UNKNOWN") << value;
    EXPECT_STRNE(code_text(static_cast<Code>(value)), "") << value;
  }
  // kWouldBlock never crosses the C ABI, so it has no name there.
  EXPECT_STREQ(code_name(Code::kWouldBlock), "UNKNOWN");
}

TEST(Status, DefaultIsSuccess) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), Code::kOk);
}

TEST(Status, TextDefaultsToTheTextOfTheCode) {
  EXPECT_EQ(Status(Code::kTimedOut).text(), "the deadline passed");
  EXPECT_EQ(Status(Code::kTimedOut, "recv from 3").text(), "recv from 3");
}

TEST(Status, AnnotateKeepsTheCode) {
  const Status status = Status(Code::kPeerLost, "reset").annotate("tcp").annotate("send to 1");
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.text(), "send to 1: tcp: reset");
  EXPECT_TRUE(Status().annotate("anything").ok());
}

TEST(Status, CopiesAreIndependent) {
  Status first(Code::kBusy, "one");
  const Status second = first;
  first = Status(Code::kAborted, "two");
  EXPECT_EQ(second.code(), Code::kBusy);
  EXPECT_EQ(second.text(), "one");
}

TEST(Status, ResultHoldsAValueOrAnError) {
  Result<std::unique_ptr<int>> good(std::make_unique<int>(5));
  ASSERT_TRUE(good.ok());
  EXPECT_TRUE(good.status().ok());
  EXPECT_EQ(**good, 5);
  const std::unique_ptr<int> moved = std::move(good).value();
  EXPECT_EQ(*moved, 5);

  const Result<int> bad(Status(Code::kNotFound, "no such device"));
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().code(), Code::kNotFound);
  EXPECT_EQ(bad.status().text(), "no such device");
}

Status fail_at_second(int* steps) {
  ++*steps;
  HETCOMM_RETURN_IF_ERROR(Status());
  ++*steps;
  HETCOMM_RETURN_IF_ERROR(Status(Code::kBusy));
  ++*steps;
  return {};
}

TEST(Status, ReturnIfErrorStopsAtTheFirstFailure) {
  int steps = 0;
  EXPECT_EQ(fail_at_second(&steps).code(), Code::kBusy);
  EXPECT_EQ(steps, 2);
}

TEST(Status, ErrnoMapsToTheMatchingCode) {
  const struct {
    int error;
    Code code;
  } cases[] = {
      {EMFILE, Code::kOutOfResources},   {ENOMEM, Code::kOutOfMemory},
      {EACCES, Code::kPermissionDenied}, {EINVAL, Code::kInvalidArgument},
      {ETIMEDOUT, Code::kTimedOut},      {ECONNRESET, Code::kPeerLost},
      {EPIPE, Code::kPeerLost},          {ENOSYS, Code::kUnsupported},
      {EXDEV, Code::kInternal},          {ENOENT, Code::kNotFound},
  };
  for (const auto& [error, code] : cases) {
    const Status status = status_from_errno(error, "connect");
    EXPECT_EQ(status.code(), code) << error;
    EXPECT_TRUE(status.text().starts_with("connect: ")) << status.text();
    EXPECT_GT(status.text().size(), std::string("connect: ").size());
  }
}

}  // namespace
}  // namespace hetcomm
