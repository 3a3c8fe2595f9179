// Config: the table is complete and parses by its own rules. Settings override the environment,
// which overrides defaults. An unparsable or out-of-range value is reported with the variable and
// the allowed values. A misspelt name is reported with the nearest known one. Secrets are never
// shown. In a program with more rights than its caller, variables that name files are ignored, and
// those that concern trust end the program.
#include "src/system/config.h"

#include <cctype>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "devices/variables.h"
#include "src/base/lists.h"
#include "src/bootstrap/variables.h"
#include "src/capi/variables.h"
#include "src/core/job/membership/variables.h"
#include "src/core/memory/variables.h"
#include "src/core/peer/variables.h"
#include "src/core/progress/variables.h"
#include "src/net/variables.h"
#include "src/system/clock.h"
#include "src/system/variables.h"
#include "transports/shm/variables.h"
#include "transports/tcp/variables.h"

namespace hetcomm {
namespace {

class ConfigTest : public testing::Test {
 protected:
  ConfigTest() {
    log_.set_sink(
        [](void* lines, int32_t, const char* line) {
          static_cast<std::vector<std::string>*>(lines)->emplace_back(line);
        },
        &lines_);
  }

  Result<Config> load(std::vector<const char*> environment, std::string_view settings = "") {
    environment.push_back(nullptr);
    return Config::load(kVariables, environment.data(), settings, log_);
  }
  Config loaded(std::vector<const char*> environment, std::string_view settings = "") {
    Result<Config> config = load(std::move(environment), settings);
    if (!config.ok()) {
      ADD_FAILURE() << config.status().text();
      return load({}).value();
    }
    return std::move(config).value();
  }
  std::string error(std::vector<const char*> environment, std::string_view settings = "") {
    const Result<Config> config = load(std::move(environment), settings);
    EXPECT_EQ(config.status().code(), Code::kInvalidArgument);
    return std::string(config.status().text());
  }

  std::vector<std::string> lines_;
  Log log_;
};

TEST_F(ConfigTest, EveryVariableHasADescription) {
  std::set<std::string> names;
  for (const Variable* each : kVariables) {
    const Variable& info = *each;
    EXPECT_TRUE(std::string_view(info.name).starts_with("HETCOMM_"));
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_EQ(info.type == VariableType::kChoice, info.choices != nullptr) << info.name;
    const std::string_view meaning = info.meaning;
    ASSERT_FALSE(meaning.empty()) << info.name;
    EXPECT_TRUE(std::isupper(static_cast<unsigned char>(meaning.front()))) << meaning;
    EXPECT_EQ(meaning.back(), '.') << meaning;
  }
}

TEST_F(ConfigTest, DefaultsParseAndAreShown) {
  const Config config = loaded({});
  for (const Variable* each : kVariables) {
    const Variable& info = *each;
    EXPECT_EQ(config.text(info), info.default_value);
    EXPECT_STREQ(config.shown(info), info.default_value);
    EXPECT_FALSE(config.is_set(info));
  }
  EXPECT_EQ(config.number(variable::kTimeout), 1'800'000'000'000u);
  EXPECT_EQ(config.number(variable::kCreditBytes), 1u << 20);
}

TEST_F(ConfigTest, SettingsOverrideTheEnvironment) {
  const Config config = loaded({"PATH=/bin", "HETCOMM_LOG=info", "HETCOMM_TCP_CHUNK=2M"},
                               "LOG=debug;HETCOMM_TIMEOUT=5s;");
  EXPECT_EQ(config.text(variable::kLog), "debug");
  EXPECT_TRUE(config.is_set(variable::kLog));
  EXPECT_EQ(config.number(variable::kTcpChunk), 2u << 20);
  EXPECT_EQ(config.number(variable::kTimeout), 5'000'000'000u);
  EXPECT_TRUE(lines_.empty());
}

// A new variable that names a file must be marked as such. Its name or description reveals it.
TEST_F(ConfigTest, EveryVariableThatNamesAFileIsMarked) {
  const std::set<std::string_view> by_value = {"HETCOMM_TLS_SERVER_NAME", "HETCOMM_SHM_USERS"};
  std::set<std::string_view> about_trust = {"HETCOMM_SECRET_FILE", "HETCOMM_TLS_CERTIFICATE",
                                            "HETCOMM_TLS_KEY", "HETCOMM_TLS_CA"};
  about_trust.insert(by_value.begin(), by_value.end());
  for (const Variable* each : kVariables) {
    const Variable& info = *each;
    const std::string_view name = info.name;
    const std::string_view meaning = info.meaning;
    const bool is_text = info.type == VariableType::kText;
    const bool speaks_of_files =
        is_text && (name.ends_with("_FILE") || meaning.starts_with("File ") ||
                    meaning.starts_with("PEM file") || meaning.find(" a file") != meaning.npos ||
                    meaning.find("Shared libraries") != meaning.npos);
    EXPECT_EQ(info.names != Naming::kNoFile, speaks_of_files || by_value.contains(name)) << name;
    EXPECT_EQ(info.names == Naming::kTrust, about_trust.contains(name)) << name;
    if (info.names == Naming::kFile) {
      EXPECT_TRUE(is_text) << name;
    }
  }
}

// Checks every table entry: an untrusted caller's setting is used only if it names no file.
TEST_F(ConfigTest, UntrustedCallersCannotSetFileVariables) {
  for (const Variable* each : kVariables) {
    const Variable& info = *each;
    const bool is_path = info.names != Naming::kNoFile && info.type == VariableType::kText;
    const std::string value = is_path ? "/tmp/of-the-caller" : std::string(info.default_value);
    const std::string entry = std::string(info.name) + "=" + (value.empty() ? "x" : value);
    const char* const environment[] = {entry.c_str(), nullptr};
    lines_.clear();
    const Result<Config> config =
        Config::load(kVariables, environment, "", log_, Caller::kStranger);
    if (info.names == Naming::kTrust) {
      EXPECT_EQ(config.status().code(), Code::kPermissionDenied) << info.name;
      EXPECT_NE(config.status().text().find(info.name), std::string_view::npos);
    } else {
      ASSERT_TRUE(config.ok()) << config.status().text();
      EXPECT_EQ(config.value().is_set(info), info.names == Naming::kNoFile) << info.name;
    }
    EXPECT_EQ(lines_.size(), info.names == Naming::kNoFile ? 0u : 1u) << info.name;
    EXPECT_TRUE(Config::load(kVariables, environment, "", log_).ok()) << "its owner may";
  }
}

TEST_F(ConfigTest, OneWarningListsIgnoredVariablesAndSettingsStillApply) {
  const char* const environment[] = {"HETCOMM_LOG_FILE=/a", "HETCOMM_DEVICE_PLUGINS=/b.so",
                                     "HETCOMM_TLS_CA=/c",   "HETCOMM_LINK_MODEL=/d",
                                     "HETCOMM_TIMEOUT=5s",  nullptr};
  Result<Config> config = Config::load(kVariables, environment, "TLS_CA=/own;LINK_MODEL=/mine",
                                       log_, Caller::kStranger);
  ASSERT_TRUE(config.ok()) << config.status().text();
  EXPECT_EQ(config->text(variable::kTlsCa), "/own");
  EXPECT_EQ(config->text(variable::kLinkModel), "/mine");
  EXPECT_EQ(config->text(variable::kLogFile), "");
  EXPECT_EQ(config->number(variable::kTimeout), 5'000'000'000u);
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_NE(lines_[0].find("HETCOMM_LOG_FILE, HETCOMM_DEVICE_PLUGINS;"), std::string::npos)
      << lines_[0];
}

// A program that names its own file does not want the secret from its caller's environment.
TEST_F(ConfigTest, SecretFileInSettingsOverridesSecretInEnvironment) {
  const char* const environment[] = {"HETCOMM_SECRET=caller", nullptr};
  const auto secret_with = [&](const char* settings) {
    return std::string(
        Config::load(kVariables, environment, settings, log_)->text(variable::kSecret));
  };
  EXPECT_EQ(secret_with("SECRET_FILE=/own"), "");
  EXPECT_EQ(secret_with("SECRET_FILE="), "caller");
  EXPECT_EQ(secret_with("SECRET_FILE=/own;SECRET=own"), "own");
  EXPECT_EQ(secret_with("SECRET=own;SECRET_FILE=/own"), "own");
  EXPECT_EQ(secret_with("TLS=on"), "caller");
}

TEST_F(ConfigTest, EmptyVariableIsUnset) {
  const Config config = loaded({"HETCOMM_TIMEOUT=", "HETCOMM_LOG"});
  EXPECT_FALSE(config.is_set(variable::kTimeout));
  EXPECT_EQ(config.text(variable::kLog), "warn");
}

TEST_F(ConfigTest, ParseErrorsNameTheVariable) {
  const struct {
    const char* entry;
    const char* name;
    const char* value;
  } cases[] = {
      {"HETCOMM_TIMEOUT=soon", "HETCOMM_TIMEOUT", "soon"},
      {"HETCOMM_CREDIT_BYTES=4Q", "HETCOMM_CREDIT_BYTES", "4Q"},
      {"HETCOMM_STORE_PORT=http", "HETCOMM_STORE_PORT", "http"},
      {"HETCOMM_STORE_PORT=-1", "HETCOMM_STORE_PORT", "-1"},
      {"HETCOMM_STORE_PORT=80x", "HETCOMM_STORE_PORT", "80x"},
      {"HETCOMM_STORE_PORT=80 ", "HETCOMM_STORE_PORT", "80 "},
      {"HETCOMM_RAILS=99999999999999999999", "HETCOMM_RAILS", "99999999999999999999"},
      {"HETCOMM_LOG=loud", "HETCOMM_LOG", "loud"},
      {"HETCOMM_YIELD=auto|yes", "HETCOMM_YIELD", "auto|yes"},
  };
  for (const auto& [entry, name, value] : cases) {
    for (const bool by_settings : {false, true}) {
      const std::string text = by_settings ? error({}, entry) : error({entry});
      EXPECT_NE(text.find(name), std::string::npos) << text;
      EXPECT_NE(text.find(value), std::string::npos) << text;
    }
  }
}

TEST_F(ConfigTest, ChoicesAndSwitchesIgnoreCase) {
  const Config loud = loaded({"HETCOMM_LOG=INFO", "HETCOMM_SHM_BULK=Read"});
  EXPECT_EQ(loud.text(variable::kLog), "info");
  EXPECT_EQ(loud.text(variable::kShmBulk), "read");
  for (const char* on : {"on", "ON", "1", "yes", "True"}) {
    const std::string text = std::string("HETCOMM_TLS=") + on;
    const Config config = loaded({text.c_str()});
    EXPECT_TRUE(config.is_on(variable::kTls)) << on;
    EXPECT_EQ(config.text(variable::kTls), "on");
  }
  for (const char* off : {"off", "0", "no", "FALSE"}) {
    const std::string text = std::string("HETCOMM_SHM_MAP=") + off;
    EXPECT_FALSE(loaded({text.c_str()}).is_on(variable::kShmMap)) << off;
  }
  EXPECT_EQ(loaded({"HETCOMM_YIELD=1"}).text(variable::kYield), "on");
  // HETCOMM_SHM_BULK is not a boolean switch.
  EXPECT_NE(error({"HETCOMM_SHM_BULK=1"}).find("auto|copy|read"), std::string::npos);
}

TEST_F(ConfigTest, OutOfRangeErrorNamesTheRange) {
  const struct {
    const char* entry;
    const char* range;
  } cases[] = {
      {"HETCOMM_STORE_PORT=65536", "0 to 65535"},
      {"HETCOMM_RAILS=0", "1 to 64"},
      {"HETCOMM_RDMA_TRAFFIC_CLASS=256", "0 to 255"},
      {"HETCOMM_RDMA_RETRIES=8", "0 to 7"},
      {"HETCOMM_RDMA_SLICE=1K", "4K to 16M"},
      {"HETCOMM_STAGING_DEPTH=100", "0 to 16"},
      {"HETCOMM_STAGING_CHUNK=1", "0, or 4K to 1G"},
      {"HETCOMM_SHM_CHUNK=0", "4K to 1M"},
      {"HETCOMM_SHM_RING_BYTES=1", "64K to 1G"},
      {"HETCOMM_TCP_CHUNK=0", "512 to 64M"},
      {"HETCOMM_TCP_STREAMS=100000", "0 to 8"},
      {"HETCOMM_CREDIT_BYTES=2G", "4K to 1G"},
      {"HETCOMM_UNEXPECTED_BYTES=0", "4K and more"},
      {"HETCOMM_DETECTION_TIME=1ns", "10ms and more"},
      {"HETCOMM_COOL_DOWN=0", "1ms to 24h"},
  };
  for (const auto& [entry, range] : cases) {
    const std::string text = error({entry});
    const std::string_view name =
        std::string_view(entry).substr(0, std::string_view(entry).find('='));
    EXPECT_TRUE(text.starts_with(name)) << text;
    EXPECT_NE(text.find(range), std::string::npos) << text;
  }
}

TEST_F(ConfigTest, RangesIncludeTheirLimits) {
  for (const Variable* each : kVariables) {
    const Variable& info = *each;
    for (const uint64_t end : {info.limits.least, info.limits.most}) {
      if (end == 0 || end == UINT64_MAX) continue;
      const std::string unit = info.type == VariableType::kDuration ? "ns" : "";
      const std::string entry = std::string(info.name) + "=" + std::to_string(end) + unit;
      EXPECT_EQ(loaded({entry.c_str()}).number(info), end) << entry;
    }
  }
  EXPECT_EQ(loaded({"HETCOMM_STAGING_CHUNK=0"}).number(variable::kStagingChunk), 0u);
}

// An operation timeout of 0 means the default too.
TEST_F(ConfigTest, ZeroTimeoutSelectsTheDefault) {
  const Config config = loaded({"HETCOMM_TIMEOUT=0", "HETCOMM_BOOTSTRAP_TIMEOUT=0ms"});
  EXPECT_EQ(config.number(variable::kTimeout), 1'800'000'000'000u);
  EXPECT_EQ(config.number(variable::kBootstrapTimeout), 300'000'000'000u);
  EXPECT_STREQ(config.shown(variable::kTimeout), "30min");
}

TEST_F(ConfigTest, ParseErrorsNameTheAcceptedUnits) {
  EXPECT_NE(error({"HETCOMM_TIMEOUT=soon"}).find("500ms"), std::string::npos);
  EXPECT_NE(error({"HETCOMM_CREDIT_BYTES=4Q"}).find("K, M or G"), std::string::npos);
}

TEST_F(ConfigTest, ParseErrorsListTheChoices) {
  EXPECT_NE(error({"HETCOMM_PROGRESS=magic"}).find("caller|thread"), std::string::npos);
}

TEST_F(ConfigTest, WarningForUnknownVariableSuggestsTheNearest) {
  static_cast<void>(loaded({"HETCOMM_TIMEOTU=5s"}));
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_NE(lines_[0].find("HETCOMM_TIMEOTU"), std::string::npos) << lines_[0];
  EXPECT_NE(lines_[0].find("did you mean HETCOMM_TIMEOUT?"), std::string::npos) << lines_[0];
}

TEST_F(ConfigTest, DissimilarUnknownVariableGetsNoSuggestion) {
  static_cast<void>(loaded({"HETCOMM_QQQQQQQQQQQQQQQQQQQQQQ=1"}));
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_EQ(lines_[0].find("did you mean"), std::string::npos) << lines_[0];
}

TEST_F(ConfigTest, VariablesWithOtherPrefixesAreIgnored) {
  static_cast<void>(loaded(
      {"HETCOM_LOG=x", "XHETCOMM_LOG=x", "HETCOMM_TEST_SEED=1", "HETCOMM_PYTHON=python3", "A"}));
  EXPECT_TRUE(lines_.empty());
}

TEST_F(ConfigTest, UnknownSettingsAreRefused) {
  EXPECT_NE(error({}, "NOISE=1").find("NOISE"), std::string::npos);
  EXPECT_NE(error({}, "LOG").find("LOG"), std::string::npos);
  EXPECT_NE(error({}, "=5").find("not a known variable"), std::string::npos);
  EXPECT_NE(error({}, "TIMEUOT=5s").find("did you mean HETCOMM_TIMEOUT?"), std::string::npos);
  EXPECT_NE(error({}, "LOG").find("has no value"), std::string::npos);
  EXPECT_EQ(error({}, "SECRE=hush").find("hush"), std::string::npos);
  EXPECT_NE(error({}, "TIMEOUT=5s;;NOISE=1").find("entry 3"), std::string::npos);
}

// Tests secrets that contain a terminator (;), and secrets introduced by another character than =.
TEST_F(ConfigTest, MalformedSettingErrorsRevealNoSecret) {
  for (const char* settings :
       {"SECRET=open;hush", "SECRET=open;hush=x", "SECRET=open;;LOG=info;hush=x", "SECRET:hush",
        "SECRET:hush=x", "SECRET hush", "SECRET=open;x=hush;y"}) {
    const std::string text = error({}, settings);
    EXPECT_NE(text, "");
    EXPECT_EQ(text.find("hush"), std::string::npos) << text;
  }
  static_cast<void>(loaded({"HETCOMM_SECRET:hush=x", "HETCOMM_SECRET hush"}));
  for (const std::string& line : lines_) EXPECT_EQ(line.find("hush"), std::string::npos) << line;
}

TEST_F(ConfigTest, ValueMayContainAnEqualsSign) {
  const Config config = loaded({"HETCOMM_DEVICES=sim-handle:bandwidth=1G:latency=2us"});
  EXPECT_EQ(config.text(variable::kDevices), "sim-handle:bandwidth=1G:latency=2us");
}

TEST_F(ConfigTest, SecretValueIsNotShown) {
  const Config config = loaded({"HETCOMM_SECRET=hunter2"});
  EXPECT_EQ(config.text(variable::kSecret), "hunter2");
  EXPECT_STREQ(config.shown(variable::kSecret), "(set)");
  EXPECT_STREQ(loaded({}).shown(variable::kSecret), "");
}

TEST(ConfigParse, DurationsParseInEveryUnit) {
  const struct {
    const char* text;
    uint64_t ns;
  } good[] = {
      {"10s", 10'000'000'000},   {"500ms", 500'000'000},
      {"30us", 30'000},          {"7ns", 7},
      {"2min", 120'000'000'000}, {"1h", 3'600'000'000'000},
      {"3", 3'000'000'000},      {"0", 0},
      {"1.5s", 1'500'000'000},   {"0.5us", 500},
      {"inf", kForever},
  };
  for (const auto& [text, ns] : good) {
    const Result<uint64_t> parsed = parse_duration(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(parsed.value(), ns) << text;
  }
}

TEST(ConfigParse, SizesParseInEveryUnit) {
  const struct {
    const char* text;
    uint64_t bytes;
  } good[] = {
      {"4096", 4096},     {"0", 0},         {"64K", 64u << 10},    {"64KiB", 64u << 10},
      {"64k", 64u << 10}, {"1M", 1u << 20}, {"1MiB", 1u << 20},    {"2G", 2ull << 30},
      {"1.5K", 1536},     {"12B", 12},      {"1024G", 1ull << 40},
  };
  for (const auto& [text, bytes] : good) {
    const Result<uint64_t> parsed = parse_size(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(parsed.value(), bytes) << text;
  }
}

TEST(ConfigParse, MalformedDurationsAndSizesAreRefused) {
  for (const char* const text :
       {"", " ", "-1", "-5s", "1 s", " 1s", "s", "ten", "nan", "1e30s", "infinity", "5x", "1s ",
        "0x10", "1,5s", "--1", "10000000000s", "3000000h", "18446744074"}) {
    const Result<uint64_t> parsed = parse_duration(text);
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument) << text;
    EXPECT_NE(parsed.status().text().find(text), std::string_view::npos);
  }
  for (const char* const text : {"", "-1", "1KB", "1T", "K", "1e30", "inf", "nan", "1K ", "1 K",
                                 "10000000000G", "18446744073709551615"}) {
    EXPECT_EQ(parse_size(text).status().code(), Code::kInvalidArgument) << text;
  }
}

TEST(ConfigParse, ListItemsAreTrimmed) {
  using Parts = std::vector<std::string_view>;
  EXPECT_EQ(split_list("shm, tcp"), (Parts{"shm", "tcp"}));
  EXPECT_EQ(split_list("  shm\t,tcp ,"), (Parts{"shm", "tcp"}));
  EXPECT_EQ(split_list("a b"), (Parts{"a b"}));
  EXPECT_TRUE(split_list("").empty());
  EXPECT_TRUE(split_list(" , ,").empty());
}

TEST(ConfigParse, NearestVariableIsFoundForMisspeltNames) {
  EXPECT_EQ(nearest_variable(kVariables, "HETCOMM_TRANSPORT"), "HETCOMM_TRANSPORTS");
  EXPECT_EQ(nearest_variable(kVariables, "HETCOMM_INTERFACES"), "HETCOMM_INTERFACE");
  EXPECT_EQ(nearest_variable(kVariables, "HETCOMM_LGO"), "HETCOMM_LOG");
  EXPECT_EQ(nearest_variable(kVariables, "HETCOMM_SECRET"), "HETCOMM_SECRET");
  EXPECT_EQ(nearest_variable(kVariables, "HETCOMM_TYPO"), "");
  EXPECT_EQ(nearest_variable(kVariables, "HETCOMM_"), "");
  EXPECT_EQ(nearest_variable(kVariables, ""), "");
  EXPECT_EQ(nearest_variable(kVariables, "SOMETHING_ELSE_ENTIRELY"), "");
}

}  // namespace
}  // namespace hetcomm
