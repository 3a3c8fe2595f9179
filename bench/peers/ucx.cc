// UCX: tagged messages and remote memory access over its shared memory transports, through copies
// and with single copy (cma), over TCP, and over verbs.
#include <unistd.h>

#include <filesystem>
#include <string_view>

#include <fmt/core.h>

#include "bench/peers/peers.h"

namespace bench {
namespace {

namespace fs = std::filesystem;

struct Ucx {
  std::string version;
  std::string prefix;  // contains include/, lib/ and bin/
  std::string runner;
  std::vector<std::pair<std::string, std::string>> environment;
};

struct Variant {
  const char* suffix;
  const char* transports;
  std::string_view over;  // hetcomm's transport that it is measured against
};
constexpr Variant kVariants[] = {
    {"/posix", "posix,self", "shm"},
    {"/posix,cma", "posix,cma,self", "shm"},
    {"/tcp", "tcp", "tcp"},
    {"/rc_verbs", "rc_v,self", "rdma"},
};

std::string_view comparable(std::string_view transport) {
  return transport == "tcp" || transport == "rdma" ? transport : "shm";
}

// Returns the folder of UCX in a virtual environment where the Python package puts it.
std::string in_environment(const fs::path& environment) {
  std::error_code error;
  for (const fs::directory_entry& python : fs::directory_iterator(environment / "lib", error)) {
    const fs::path prefix = python.path() / "site-packages/libucx";
    if (fs::exists(prefix / "include/ucp/api/ucp.h", error)) return prefix;
  }
  return "";
}

std::string find_prefix(const PeerOptions& options, std::string* complaint) {
  std::error_code error;
  const std::string given = given_path(options, "ucx");
  if (!given.empty()) {
    if (fs::exists(fs::path(given) / "include/ucp/api/ucp.h", error)) return given;
    *complaint = fmt::format("{} has no include/ucp/api/ucp.h", given);
    return "";
  }
  const std::string folder = peers_folder(options);
  const std::string installed = folder.empty() ? "" : in_environment(fs::path(folder) / "ucx");
  if (!installed.empty()) return installed;
  if (fs::exists("/usr/include/ucp/api/ucp.h", error)) return "/usr";
  *complaint =
      "no UCX found: no headers in /usr/include (libucx-dev), nothing in build/peers "
      "(`make peers` installs it)";
  return "";
}

void add_nic(tools::Process* process) {
  const std::string nic = first_nic();
  const bool has_port = nic.find(':') != std::string::npos;
  if (!nic.empty())
    process->environment.emplace_back("UCX_NET_DEVICES", nic + (has_port ? "" : ":1"));
  const std::string index = variable("HETCOMM_RDMA_GID_INDEX");
  if (!index.empty()) process->environment.emplace_back("UCX_IB_GID_INDEX", index);
}

tools::Launch launch_ucx(const Ucx& ucx, const Variant& variant, const Work& work) {
  static int count = 0;
  const std::string meeting = fmt::format("hetcomm_bench-ucx-{}-{}", getpid(), ++count);
  tools::Launch launch;
  for (int rank = 0; rank < 2; ++rank) {
    tools::Process process;
    process.command = {ucx.runner, "rank=" + std::to_string(rank), "meeting=" + meeting};
    const std::string workload = encode(work.workload);
    for (std::string_view word : split(workload, ' ')) process.command.emplace_back(word);
    process.environment = ucx.environment;
    process.environment.emplace_back("UCX_TLS", variant.transports);
    if (variant.over == "tcp") process.environment.emplace_back("UCX_NET_DEVICES", "lo");
    if (variant.over == "rdma") add_nic(&process);
    process.environment.emplace_back("UCX_WARN_UNUSED_ENV_VARS", "n");
    process.cpu = cpu_of_rank(work, rank);
    launch.processes.push_back(std::move(process));
  }
  return launch;
}

std::string version_of(const Ucx& ucx) {
  tools::Process ask;
  ask.command = {ucx.prefix + "/bin/ucx_info", "-v"};
  ask.environment = ucx.environment;
  const std::string answer = tools::capture(ask);
  // Supports newer and older releases.
  for (const std::string_view mark : {"Library version: ", "# Version "}) {
    const size_t at = answer.find(mark);
    if (at == std::string::npos) continue;
    const size_t start = at + mark.size();
    return answer.substr(start, answer.find_first_of(" \n", start) - start);
  }
  return "unknown";
}

}  // namespace

std::vector<Implementation> find_ucx(const PeerOptions& options, Builder& builder,
                                     std::string* complaint) {
  Ucx ucx;
  ucx.prefix = find_prefix(options, complaint);
  if (ucx.prefix.empty()) return {};
  std::vector<std::string> compile = {Builder::compiler()};
  std::vector<std::string> libraries;
  if (ucx.prefix != "/usr") {
    const std::string lib = ucx.prefix + "/lib";
    compile.push_back("-I" + ucx.prefix + "/include");
    libraries = {"-L" + lib, "-Wl,-rpath," + lib + ",--disable-new-dtags"};
    // The UCX modules are next to the library, and its tools would otherwise load the system's UCX.
    ucx.environment = {{"UCX_MODULE_DIR", lib + "/ucx"}, {"LD_LIBRARY_PATH", lib}};
  }
  libraries.insert(libraries.end(), {"-lucp", "-lucs"});
  ucx.version = version_of(ucx);
  ucx.runner = builder.build("runner_ucx", compile, libraries, complaint);
  if (ucx.runner.empty()) return {};
  std::vector<Implementation> implementations;
  for (const Variant& variant : kVariants) {
    Implementation implementation;
    implementation.info = {fmt::format("ucx-{}{}", ucx.version, variant.suffix), ucx.version,
                           ucx.prefix};
    implementation.refusal = [over = variant.over](const Work& work) -> std::string {
      if (over != comparable(work.transport)) return "not over this transport";
      if (work.workload.test.compare(0, 11, "put_notify_") == 0)
        return "it has no put that notifies";
      const std::string refusal = refuse_collectives(work);
      return refusal.empty() ? refuse_beyond_pairs(work) : refusal;
    };
    implementation.launch = [ucx, variant](const Work& work) {
      return launch_ucx(ucx, variant, work);
    };
    implementations.push_back(std::move(implementation));
  }
  return implementations;
}

}  // namespace bench
