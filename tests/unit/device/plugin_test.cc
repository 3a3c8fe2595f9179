// Invalid plug-ins are refused with a text that names the library and the fault.
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/device/fixture.h"

namespace hetcomm {

std::vector<std::string> kinds_to_test() {
  return {"host", "sim-handle", "sim-address", "example"};
}

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string path_of(const char* variable) {
  const char* const path = std::getenv(variable);
  EXPECT_NE(path, nullptr) << variable << " is not set";
  return path != nullptr ? path : "";
}

const std::vector<std::string_view> kTaken = {"host", "sim-handle"};

Result<Plugins> load(const std::string& paths) {
  return Plugins::load(paths, kTaken, [](std::string_view) {});
}

// Selects a faulty plug-in while the object exists.
class Wrong {
 public:
  explicit Wrong(const char* how) { setenv("HETCOMM_TEST_WRONG", how, 1); }
  Wrong(const Wrong&) = delete;
  Wrong& operator=(const Wrong&) = delete;
  ~Wrong() { unsetenv("HETCOMM_TEST_WRONG"); }
};

TEST(Plugins, LoadedPluginsAddTheirKinds) {
  const std::string good = path_of("HETCOMM_TEST_PLUGIN");
  const std::string other = path_of("HETCOMM_TEST_BAD_PLUGIN");
  std::vector<std::string> announced;
  Result<Plugins> plugins = Plugins::load(
      good + "," + other, kTaken, [&](std::string_view path) { announced.emplace_back(path); });
  ASSERT_TRUE(plugins.ok()) << plugins.status().text();
  EXPECT_THAT(announced, ElementsAre(good, other));
  EXPECT_THAT(plugins->kinds(), ElementsAre("example", "bad", "worse"));
  EXPECT_TRUE(plugins->has("worse"));
  EXPECT_FALSE(plugins->has("exampl"));
  EXPECT_FALSE(plugins->has("sim-handle"));
  Result<Device> device = plugins->create("example", "");
  ASSERT_TRUE(device.ok()) << device.status().text();
  device->table->destroy(device->instance);
  Result<Device> refused = plugins->create("example", "speed=1");
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.status().text(), HasSubstr("'speed=1': it has no options"));
}

TEST(Plugins, EmptyListGivesNoKinds) {
  Result<Plugins> none = load("");
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->kinds().empty());
}

TEST(Plugins, FileThatIsNotAPluginIsRefused) {
  Result<Plugins> missing = load("/nowhere/libacme.so");
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
  EXPECT_THAT(missing.status().text(), HasSubstr("/nowhere/libacme.so"));
  const std::string path = testing::TempDir() + "hetcomm_no_library.so";
  std::ofstream(path) << "this is no library";
  Result<Plugins> text = load(path);
  EXPECT_EQ(text.status().code(), Code::kNotFound);
  EXPECT_THAT(text.status().text(), HasSubstr(path));
  std::remove(path.c_str());
  Result<Plugins> other = load("libm.so.6");
  EXPECT_EQ(other.status().code(), Code::kUnsupported);
  EXPECT_THAT(other.status().text(), HasSubstr("it exports no hetcomm_device_plugin()"));
  // The second plug-in in the list fails to load.
  Result<Plugins> second = load(path_of("HETCOMM_TEST_PLUGIN") + ",/nowhere/libacme.so");
  EXPECT_THAT(second.status().text(), HasSubstr("/nowhere/libacme.so"));
}

TEST(Plugins, PluginListedTwiceIsRefused) {
  const std::string path = path_of("HETCOMM_TEST_PLUGIN");
  Result<Plugins> twice = load(path + "," + path);
  EXPECT_EQ(twice.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(twice.status().text(), HasSubstr("the kind 'example' is " + path + "'s already"));
}

TEST(Plugins, InvalidDescriptionIsRefused) {
  const std::string path = path_of("HETCOMM_TEST_BAD_PLUGIN");
  const struct {
    const char* how;
    Code code;
    const char* text;
  } cases[] = {
      {"nothing", Code::kUnsupported, "cannot be used here"},
      {"short", Code::kUnsupported, "set its struct_size"},
      {"version", Code::kUnsupported,
       "the plug-in is of version 2, and this library takes version 1"},
      {"no kinds", Code::kUnsupported, "has no kinds"},
      {"no create", Code::kUnsupported, "no create()"},
      {"name", Code::kUnsupported, "'b ad'"},
      {"null name", Code::kUnsupported, "kind 1 of the plug-in has no name"},
      {"twice", Code::kInvalidArgument, "the kind 'bad' is"},
      {"taken", Code::kInvalidArgument, "the kind 'sim-handle' is this library's already"},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.how);
    const Wrong wrong(each.how);
    Result<Plugins> refused = load(path);
    EXPECT_EQ(refused.status().code(), each.code);
    EXPECT_THAT(refused.status().text(), HasSubstr(path));
    EXPECT_THAT(refused.status().text(), HasSubstr(each.text));
  }
}

TEST(Plugins, InvalidDeviceIsRefused) {
  const std::string path = path_of("HETCOMM_TEST_BAD_PLUGIN");
  Result<Plugins> plugins = load(path);
  ASSERT_TRUE(plugins.ok()) << plugins.status().text();
  const struct {
    const char* how;
    Code code;
    const char* text;
  } cases[] = {
      {"fails", Code::kDeviceLost, "older than the moon"},
      {"fails silently", Code::kOutOfResources, "worse of "},
      {"has no end", Code::kInternal, "xxxx"},
      {"no table", Code::kUnsupported, "has no table"},
      {"short table", Code::kUnsupported, "64 bytes"},
      {"no kind", Code::kUnsupported, "no name of a kind"},
      {"", Code::kUnsupported, "the table of bad has no name(): provide one"},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.how);
    const Wrong wrong(each.how);
    for (const bool from_native : {false, true}) {
      Result<Device> refused = from_native ? plugins->create_from_native("worse", &plugins)
                                           : plugins->create("worse", "");
      EXPECT_EQ(refused.status().code(), each.code);
      EXPECT_THAT(refused.status().text(), HasSubstr(path));
      EXPECT_THAT(refused.status().text(), HasSubstr(each.text));
      EXPECT_LT(refused.status().text().size(), 1000u);
    }
  }
}

TEST(Plugins, DeviceIsCreatedFromANativeObject) {
  Result<Plugins> plugins = load(path_of("HETCOMM_TEST_PLUGIN"));
  ASSERT_TRUE(plugins.ok());
  int native = 0;
  Result<Device> device = plugins->create_from_native("example", &native);
  ASSERT_TRUE(device.ok()) << device.status().text();
  EXPECT_STREQ(device->table->kind, "example");
  device->table->destroy(device->instance);
  // Uses a plug-in built before this entry existed.
  const Wrong wrong("old");
  Result<Plugins> old = load(path_of("HETCOMM_TEST_BAD_PLUGIN"));
  ASSERT_TRUE(old.ok()) << old.status().text();
  const Result<Device> refused = old->create_from_native("worse", &native);
  EXPECT_EQ(refused.status().code(), Code::kUnsupported);
  EXPECT_THAT(refused.status().text(), HasSubstr("from HETCOMM_DEVICES only"));
}

// Entries at the end may be missing, and entries after those known to this version are ignored.
TEST(DeviceTables, TableWithoutANameUsesItsKind) {
  DeviceTable table{};
  table.kind = "acme";
  table.name = [](void*) -> const char* { return nullptr; };
  EXPECT_STREQ(name_of({&table, nullptr}), "acme");
}

TEST(DeviceTables, TableOfAnotherVersionIsCompleted) {
  Result<Plugins> plugins = load(path_of("HETCOMM_TEST_PLUGIN"));
  ASSERT_TRUE(plugins.ok());
  Result<Device> device = plugins->create("example", "");
  ASSERT_TRUE(device.ok());
  struct Longer {
    DeviceTable table;
    void* more[4];
  } longer{*device->table, {}};
  longer.table.struct_size = sizeof(longer);
  Result<DeviceTable> completed = complete_table(&longer.table);
  ASSERT_TRUE(completed.ok());
  EXPECT_EQ(completed->struct_size, sizeof(DeviceTable));
  EXPECT_EQ(completed->copy_to_host, device->table->copy_to_host);
  EXPECT_EQ(completed->pin_host, nullptr);
  DeviceTable half = *device->table;
  half.copy_rows_to_host = [](void*, void*, void*, const void*, const DeviceRows*) {
    return hetcomm_status_t{HETCOMM_OK};
  };
  EXPECT_THAT(complete_table(&half).status().text(), HasSubstr("no copy_rows_from_host()"));
  half = *device->table;
  EXPECT_EQ(half.stream_create, nullptr) << "its copies are over when the call returns";
  EXPECT_NE(completed->stream_create, nullptr);
  half.event_query = completed->event_query;
  EXPECT_THAT(complete_table(&half).status().text(), HasSubstr("no stream_create()"));
  half = *device->table;
  half.event_notify = [](void*, void*, int) { return hetcomm_status_t{HETCOMM_OK}; };
  EXPECT_THAT(complete_table(&half).status().text(), HasSubstr("no stream_create()"));
  half = *device->table;
  half.find = nullptr;
  EXPECT_THAT(complete_table(&half).status().text(), HasSubstr("no find()"));
  half.host_accessible = 1;
  EXPECT_TRUE(complete_table(&half).ok());
  EXPECT_THAT(complete_table(nullptr).status().text(), HasSubstr("no table"));
  device->table->destroy(device->instance);
}

}  // namespace
}  // namespace hetcomm
