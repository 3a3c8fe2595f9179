// Version, build and status texts: header and library agree, texts exist, and the last error is per
// thread.
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include <hetcomm/hetcomm.h>

namespace {

TEST(Version, HeaderAndLibraryVersionsAgree) {
  EXPECT_EQ(hetcomm_version_string(), std::to_string(HETCOMM_VERSION_MAJOR) + "." +
                                          std::to_string(HETCOMM_VERSION_MINOR) + "." +
                                          std::to_string(HETCOMM_VERSION_PATCH));
  EXPECT_EQ(hetcomm_abi_version(), static_cast<uint32_t>(HETCOMM_ABI_VERSION));
}

TEST(Version, BuildStringIsOneLine) {
  const std::string build = hetcomm_build_string();
  EXPECT_FALSE(build.empty());
  EXPECT_EQ(build.find('\n'), std::string::npos);
}

TEST(Status, NamesAndTextsMatchTheHeader) {
#define HETCOMM_TEST_CHECK(name, value, text)               \
  EXPECT_STREQ(hetcomm_status_name(HETCOMM_##name), #name); \
  EXPECT_STREQ(hetcomm_status_text(HETCOMM_##name), text);  \
  EXPECT_EQ(static_cast<hetcomm_status_t>(HETCOMM_##name), (value));
  HETCOMM_STATUS_MAP(HETCOMM_TEST_CHECK)
#undef HETCOMM_TEST_CHECK
}

TEST(LastError, LastErrorIsPerThread) {
  ASSERT_EQ(hetcomm_variable_describe(0, nullptr), HETCOMM_INVALID_ARGUMENT);
  EXPECT_STRNE(hetcomm_last_error(), "");
  std::thread([] { EXPECT_STREQ(hetcomm_last_error(), ""); }).join();
  EXPECT_STRNE(hetcomm_last_error(), "");
}

TEST(Variables, EveryVariableHasADescriptionAndAValue) {
  hetcomm_context_t* context = nullptr;
  ASSERT_EQ(hetcomm_context_create(nullptr, &context), HETCOMM_OK) << hetcomm_last_error();
  size_t count = 0;
  hetcomm_variable_info_t info{.struct_size = sizeof(info)};
  while (hetcomm_variable_describe(count, &info) == HETCOMM_OK) {
    EXPECT_EQ(std::string(info.name).rfind("HETCOMM_", 0), 0u) << info.name;
    EXPECT_STRNE(info.meaning, "") << info.name;
    const char* value = nullptr;
    EXPECT_EQ(hetcomm_context_variable(context, info.name, &value), HETCOMM_OK) << info.name;
    EXPECT_NE(value, nullptr);
    ++count;
  }
  EXPECT_GT(count, 0u);
  EXPECT_EQ(hetcomm_context_destroy(context), HETCOMM_OK);
}

TEST(Variables, SecretsAreHidden) {
  hetcomm_context_options_t options{};
  options.struct_size = sizeof(options);
  options.settings = "SECRET=hunter2";
  hetcomm_context_t* context = nullptr;
  ASSERT_EQ(hetcomm_context_create(&options, &context), HETCOMM_OK) << hetcomm_last_error();
  const char* value = nullptr;
  ASSERT_EQ(hetcomm_context_variable(context, "HETCOMM_SECRET", &value), HETCOMM_OK);
  EXPECT_EQ(std::string(value).find("hunter2"), std::string::npos);
  EXPECT_EQ(hetcomm_context_destroy(context), HETCOMM_OK);
}

// A caller compiled against another release.
TEST(Outputs, StructsOfOtherReleasesAreFilledToTheirSize) {
  hetcomm_context_t* context = nullptr;
  ASSERT_EQ(hetcomm_context_create(nullptr, &context), HETCOMM_OK) << hetcomm_last_error();
  struct Newer {
    hetcomm_device_info_t known;
    unsigned char more[40];
    unsigned char behind;
  } newer;
  std::memset(&newer, 0xa5, sizeof(newer));
  newer.known.struct_size = offsetof(Newer, behind);
  ASSERT_EQ(hetcomm_device_info(context, 0, &newer.known), HETCOMM_OK) << hetcomm_last_error();
  EXPECT_EQ(newer.known.struct_size, offsetof(Newer, behind));
  EXPECT_STREQ(newer.known.kind, "host");
  for (const unsigned char byte : newer.more) EXPECT_EQ(byte, 0);
  EXPECT_EQ(newer.behind, 0xa5);
  // pci_address was appended. A caller must offer at least the fields before it.
  constexpr size_t kFirstSize = offsetof(hetcomm_device_info_t, pci_address);
  hetcomm_device_info_t older;
  std::memset(&older, 0xa5, sizeof(older));
  older.struct_size = kFirstSize;
  ASSERT_EQ(hetcomm_device_info(context, 0, &older), HETCOMM_OK) << hetcomm_last_error();
  EXPECT_STREQ(older.kind, "host");
  EXPECT_EQ(older.pci_address[0], static_cast<char>(0xa5));
  for (const size_t size : {size_t{0}, sizeof(size_t), kFirstSize - 1, size_t{100'000}, SIZE_MAX}) {
    hetcomm_device_info_t info;
    std::memset(&info, 0xa5, sizeof(info));
    info.struct_size = size;
    EXPECT_EQ(hetcomm_device_info(context, 0, &info), HETCOMM_INVALID_ARGUMENT) << size;
    EXPECT_NE(std::string(hetcomm_last_error()).find("struct_size"), std::string::npos);
    EXPECT_EQ(info.struct_size, size);
    EXPECT_EQ(info.index, static_cast<int32_t>(0xa5a5a5a5));
  }
  EXPECT_EQ(hetcomm_context_destroy(context), HETCOMM_OK);
}

TEST(Transports, UnusableTransportsGiveAReason) {
  hetcomm_context_t* context = nullptr;
  ASSERT_EQ(hetcomm_context_create(nullptr, &context), HETCOMM_OK) << hetcomm_last_error();
  hetcomm_transport_info_t info{.struct_size = sizeof(info)};
  size_t count = 0;
  size_t usable = 0;
  for (; hetcomm_context_transport(context, count, &info) == HETCOMM_OK; ++count) {
    EXPECT_STRNE(info.name, "");
    if (info.usable == 0) {
      EXPECT_STRNE(info.reason, "") << info.name;
    }
    usable += info.usable != 0;
  }
  EXPECT_GT(count, 0u);
  EXPECT_GT(usable, 0u);
  EXPECT_EQ(hetcomm_context_destroy(context), HETCOMM_OK);
}

}  // namespace
