// Configuration: every HETCOMM_* variable stands in one table (config.cc) with type, default and
// meaning; `hetcomm_info --variables` prints it. A Config is read once, when a context is created,
// from the environment and from the caller's settings, which win; afterwards it is immutable.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/system/log.h"
#include "src/system/privilege.h"

namespace hetcomm {

enum class Variable : uint8_t {
  kLog,
  kLogFile,
  kProgress,
  kProgressCpus,
  kTransports,
  kInterface,
  kNic,
  kFabric,
  kTopology,
  kTopologyTrust,
  kStorePort,
  kPorts,
  kJob,
  kSecret,
  kSecretFile,
  kRequireSecret,
  kTls,
  kTlsCertificate,
  kTlsKey,
  kTlsCa,
  kTlsServerName,
  kRequireTls,
  kBootstrapTimeout,
  kTimeout,
  kDetectionTime,
  kSmallJob,
  kRaiseLimits,
  kStallTime,
  kSpinTime,
  kYield,
  kDevices,
  kDevicePlugins,
  kDevicePath,
  kDeviceSums,
  kDeviceTimeout,
  kDeviceTimeoutAbandon,
  kRails,
  kCoolDown,
  kCollectiveCheck,
  kCollectiveShared,
  kLinkModel,
  kCluster,
  kHostLabel,
  kCreditBytes,
  kUnexpectedBytes,
  kStagingChunk,
  kStagingDepth,
  kStagingPin,
  kShmRingBytes,
  kShmChunk,
  kShmBulk,
  kShmEager,
  kShmUsers,
  kShmMap,
  kTcpEager,
  kTcpChunk,
  kTcpStreams,
  kTcpSocketBuffer,
  kTcpBindFamily,
  kRdmaNic,
  kRdmaConnect,
  kRdmaGidIndex,
  kRdmaMtu,
  kRdmaTrafficClass,
  kRdmaTimeout,
  kRdmaRetries,
  kRdmaQueuePairs,
  kRdmaEager,
  kRdmaSlice,
  kRdmaCacheBytes,
  kRdmaStrictKeys,
  kCount,
};

enum class VariableType : uint8_t { kText, kSecretText, kDuration, kSize, kInteger, kChoice };

// This tells what a value leads the process to. Variables that name files or libraries do not count in a
// program that has more rights than its caller (privilege.h): the caller would read, write or run by
// the program's rights what it may not by its own. Nor do those that decide whom the process trusts.
enum class Naming : uint8_t {
  kNoFile,
  kFile,   // a file or a library
  kTrust,  // who is trusted, by a file or by the value: a guess would protect a job less
};

// The meaning of the number 0, if it is not a number like the others.
enum class Zero : uint8_t { kNumber, kAllowed, kDefault };

// The values that a number, a size or a duration may have, both ends included.
struct Limits {
  uint64_t least = 0;
  uint64_t most = UINT64_MAX;
  Zero zero = Zero::kNumber;  // kAllowed: as well; kDefault: stands for the default
};

struct VariableInfo {
  Variable variable;
  VariableType type;
  Naming names;               // without a default, so that every row says it
  const char* name;           // "HETCOMM_LOG"
  const char* default_value;  // as it would be written
  const char* choices;        // kChoice: "a|b|c"
  const char* meaning;        // one sentence
  Limits limits{};
};

std::span<const VariableInfo> variable_table();
// Describes the allowed values for people: "64K to 1G (a size in bytes, such as 4096, 64K or 1M)";
// "" for texts.
std::string allowed_values(const VariableInfo& info);

// "10s", "500ms", "30us", "2min", "inf"; a bare number is seconds. Nanoseconds.
Result<uint64_t> parse_duration(std::string_view text);
// "64K", "1MiB", "4096"; K, M, G are powers of 1024. Bytes.
Result<uint64_t> parse_size(std::string_view text);

class Config {
 public:
  // Reads |environment| ("NAME=value" strings, nullptr at the end), then |settings|
  // ("NAME=value;NAME=value", prefix optional). Warns on |log| about unknown HETCOMM_ names, with
  // the nearest known one. Fails when a value cannot be parsed or is out of its limits, naming the
  // variable and what is allowed. A secret file of |settings| counts more than a secret of
  // |environment|.
  // Where |caller| is a stranger, variables of the environment that name files or decide about trust
  // are ignored, with one warning. PERMISSION_DENIED: one of them is about trust, and |settings| do
  // not give it.
  static Result<Config> load(const char* const* environment, std::string_view settings, Log& log,
                             Caller caller = Caller::kOwner);

  // Gives |variable|, unless the user has set it, a value that follows from another variable. Before
  // the Config is shared.
  Status derive(Variable variable, std::string_view text);

  std::string_view text(Variable variable) const { return value(variable).text; }
  bool is_set(Variable variable) const { return value(variable).set; }
  // Returns whether a choice that can be on is on.
  bool is_on(Variable variable) const { return text(variable) == "on"; }
  // Duration in ns, size in bytes, or integer.
  uint64_t number(Variable variable) const { return value(variable).number; }
  // Returns the value as `hetcomm_info` shows it: secrets only as "(set)" or "".
  const char* shown(Variable variable) const { return value(variable).shown.c_str(); }

 private:
  struct Value {
    std::string text;
    std::string shown;
    uint64_t number = 0;
    bool set = false;
  };
  Config() = default;
  Status check_ignored(std::vector<const VariableInfo*> ignored, Log& log) const;
  Status assign(const VariableInfo& info, std::string_view text, bool set);
  const Value& value(Variable variable) const { return values_[static_cast<size_t>(variable)]; }

  std::vector<Value> values_;
};

// The known variable name that is nearest to |name| by edit distance, "" if none is near.
std::string_view nearest_variable(std::string_view name);

}  // namespace hetcomm
