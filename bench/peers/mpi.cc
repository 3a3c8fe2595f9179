// MPI: Open MPI 4 and 5, Intel MPI, MPICH. One line for the library with its defaults and one
// without single copy (cross memory attach), which is slower on some machines.
#include <filesystem>

#include <fmt/core.h>

#include "bench/peers/peers.h"

namespace bench {
namespace {

namespace fs = std::filesystem;

enum class Kind { kOpenMpi, kIntel, kMpich };

struct Mpi {
  Kind kind = Kind::kOpenMpi;
  std::string version;
  std::string launcher;
  std::string prefix;  // Intel MPI: its root folder
  std::string runner;
};

// A setting that selects one of the library's variants.
struct Variant {
  std::string suffix;  // appended to the name
  std::vector<std::string> options;
  std::vector<std::pair<std::string, std::string>> environment;
  bool over_tcp = false;
};

std::string word_after(const std::string& text, const std::string& mark) {
  const size_t at = text.find(mark);
  if (at == std::string::npos) return "";
  const size_t start = text.find_first_not_of(" \t", at + mark.size());
  return start == std::string::npos
             ? ""
             : text.substr(start, text.find_first_of(" \t\n,)", start) - start);
}

// Identifies the MPI at |path|: a prefix, a folder with programs, or an mpicc. Returns false with
// the reason in |complaint|.
bool identify(const fs::path& path, Mpi* mpi, fs::path* mpicc, std::string* complaint) {
  std::error_code error;
  *mpicc = fs::is_directory(path, error)
               ? (fs::exists(path / "bin/mpicc", error) ? path / "bin/mpicc" : path / "mpicc")
               : path;
  const fs::path folder = mpicc->parent_path();
  mpi->prefix = folder.parent_path();
  for (const char* name : {"mpiexec.hydra", "mpirun", "mpiexec"}) {
    const fs::path launcher = folder / name;
    if (!fs::exists(launcher, error)) continue;
    tools::Process ask;
    ask.command = {launcher, "--version"};
    const std::string answer = tools::capture(ask);
    if (answer.find("Open MPI") != std::string::npos ||
        answer.find("OpenRTE") != std::string::npos) {
      mpi->kind = Kind::kOpenMpi;
      mpi->version = word_after(answer, "(Open MPI)");
      if (mpi->version.empty()) mpi->version = word_after(answer, "(OpenRTE)");
    } else if (answer.find("Intel(R) MPI") != std::string::npos) {
      mpi->kind = Kind::kIntel;
      mpi->version = word_after(answer, "Version");
    } else if (answer.find("HYDRA") != std::string::npos) {
      mpi->kind = Kind::kMpich;
      mpi->version = word_after(answer, "Version:");
    } else {
      continue;
    }
    mpi->launcher = launcher;
    return true;
  }
  *complaint = fmt::format("there is no known mpirun beside {}", mpicc->string());
  return false;
}

std::string build_runner(const Mpi& mpi, const fs::path& mpicc, Builder& builder,
                         std::string* error) {
  // The packaged wrapper of Intel MPI names the machine that built it.
  if (mpi.kind == Kind::kIntel) {
    return builder.build("runner_mpi", {Builder::compiler(), "-I" + mpi.prefix + "/include"},
                         {"-L" + mpi.prefix + "/lib", "-lmpi",
                          "-Wl,-rpath," + mpi.prefix + "/lib,--disable-new-dtags"},
                         error);
  }
  return builder.build("runner_mpi", {mpicc}, {}, error);
}

std::vector<Variant> variants_of(const Mpi& mpi) {
  if (mpi.kind == Kind::kIntel) {
    return {{"", {}, {{"I_MPI_FABRICS", "shm"}}},
            {"/no-cma", {}, {{"I_MPI_FABRICS", "shm"}, {"I_MPI_SHM_CMA", "0"}}},
            {"/tcp",
             {},
             {{"I_MPI_FABRICS", "ofi"}, {"FI_PROVIDER", "tcp"}, {"FI_TCP_IFACE", "lo"}},
             true}};
  }
  if (mpi.kind == Kind::kMpich) {
    return {{"", {}, {}}, {"/no-cma", {}, {{"MPIR_CVAR_CH4_CMA_ENABLE", "0"}}}};
  }
  const bool old = mpi.version.substr(0, 2) == "4.";
  const std::vector<std::string> no_cma =
      old ? std::vector<std::string>{"--mca", "btl_vader_single_copy_mechanism", "none"}
          : std::vector<std::string>{"--mca", "smsc", "^cma"};
  return {{"", {}, {}},
          {"/no-cma", no_cma, {}},
          {"/tcp",
           {"--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"},
           {},
           true}};
}

void add_open_mpi_placement(const Work& work, bool crowded, bool old,
                            std::vector<std::string>* command) {
  if (crowded) {
    // With more ranks than cores a waiting rank must yield to others.
    command->insert(command->end(), {"--mca", "mpi_yield_when_idle", "1"});
    if (old) {
      command->emplace_back("--oversubscribe");
    } else {
      command->insert(command->end(), {"--map-by", ":OVERSUBSCRIBE"});
    }
  }
  const bool bound = work.bind && !crowded;
  command->insert(command->end(), {"--bind-to", bound ? "core" : "none"});
}

tools::Launch launch_mpi(const Mpi& mpi, const Variant& variant, const Work& work) {
  tools::Process process;
  process.command = {mpi.launcher, "-np", std::to_string(work.ranks)};
  process.environment = variant.environment;
  const bool crowded = static_cast<size_t>(work.ranks) > tools::usable_cpus().size();
  if (mpi.kind == Kind::kOpenMpi) {
    add_open_mpi_placement(work, crowded, mpi.version.substr(0, 2) == "4.", &process.command);
    // Open MPI otherwise refuses to run as root.
    process.environment.emplace_back("OMPI_ALLOW_RUN_AS_ROOT", "1");
    process.environment.emplace_back("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  } else if (mpi.kind == Kind::kIntel) {
    process.environment.emplace_back("I_MPI_ROOT", mpi.prefix);
    process.environment.emplace_back("LD_LIBRARY_PATH", mpi.prefix + "/lib");
    if (crowded || !work.bind) process.environment.emplace_back("I_MPI_PIN", "0");
    if (crowded) process.environment.emplace_back("I_MPI_THREAD_YIELD", "2");
  } else if (work.bind && !crowded) {
    process.command.insert(process.command.end(), {"-bind-to", "core"});
  }
  process.command.insert(process.command.end(), variant.options.begin(), variant.options.end());
  process.command.push_back(mpi.runner);
  const std::string workload = encode(work.workload);
  for (std::string_view word : split(workload, ' ')) process.command.emplace_back(word);
  tools::Launch launch;
  launch.processes.push_back(std::move(process));
  return launch;
}

const char* name_of(Kind kind) {
  if (kind == Kind::kIntel) return "intelmpi";
  return kind == Kind::kMpich ? "mpich" : "openmpi";
}

void add_variants(const Mpi& mpi, std::vector<Implementation>* implementations) {
  for (const Variant& variant : variants_of(mpi)) {
    Implementation implementation;
    implementation.info = {fmt::format("{}-{}{}", name_of(mpi.kind), mpi.version, variant.suffix),
                           mpi.version, mpi.launcher};
    implementation.refusal = [over_tcp = variant.over_tcp](const Work& work) -> std::string {
      if (over_tcp != (work.transport == "tcp")) return "not over this transport";
      return refuse_one_sided(work);
    };
    implementation.launch = [mpi, variant](const Work& work) {
      return launch_mpi(mpi, variant, work);
    };
    implementations->push_back(std::move(implementation));
  }
}

std::vector<std::string> candidates_of(const PeerOptions& options) {
  std::vector<std::string> candidates;
  for (const auto& [name, path] : options.paths) {
    if (name == "mpi") candidates.push_back(path);
  }
  if (!candidates.empty()) return candidates;
  std::error_code error;
  const std::string folder = peers_folder(options);
  for (const char* name : {"openmpi", "impi", "mpich"}) {
    if (!folder.empty() && fs::exists(fs::path(folder) / name / "bin/mpicc", error)) {
      candidates.push_back(folder + "/" + name);
    }
  }
  const std::string on_path = tools::find_program("mpicc");
  if (candidates.empty() && !on_path.empty()) candidates.push_back(on_path);
  return candidates;
}

}  // namespace

std::vector<Implementation> find_mpi(const PeerOptions& options, Builder& builder,
                                     std::string* complaint) {
  std::vector<Implementation> implementations;
  const std::vector<std::string> candidates = candidates_of(options);
  if (candidates.empty()) {
    *complaint =
        "no MPI found: no mpicc in PATH, nothing in build/peers (`make peers` installs it)";
  }
  for (const std::string& candidate : candidates) {
    Mpi mpi;
    fs::path mpicc;
    if (!identify(candidate, &mpi, &mpicc, complaint)) continue;
    mpi.runner = build_runner(mpi, mpicc, builder, complaint);
    if (!mpi.runner.empty()) add_variants(mpi, &implementations);
  }
  return implementations;
}

}  // namespace bench
