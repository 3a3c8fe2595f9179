#include "bench/options.h"

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <hetcomm/info.h>

#include "bench/loops/collectives.h"
#include "bench/report.h"
#include "bench/tests.h"
#include "src/present/nearest.h"

namespace bench {
namespace {

using hetcomm::present::did_you_mean;
using Words = std::vector<std::string>;

const Words kMemories = {"host", "sim-handle", "sim-address", "opencl"};

// --- words ---------------------------------------------------------------------------------------

// Returns text such as "unknown format 'jsn'; did you mean 'json'? Known: table, osu, csv, json".
std::string unknown(const std::string& what, const std::string& word, const Words& known) {
  const std::string guess = did_you_mean(word, known);
  return fmt::format("unknown {} '{}'{} Known: {}", what, word, guess.empty() ? "." : guess,
                     fmt::join(known, ", "));
}

bool is_one_of(const std::string& word, const Words& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

CLI::Validator one_of(const std::string& what, const Words& known) {
  return {[=](const std::string& word) {
            return is_one_of(word, known) ? std::string() : unknown(what, word, known);
          },
          ""};
}

// Converts text such as "64K", "1M" or "4096" to bytes. Returns false if it is not a size.
bool parse_bytes(const std::string& text, uint64_t* bytes) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0])) == 0) return false;
  char* end = nullptr;
  const uint64_t number = std::strtoull(text.c_str(), &end, 10);
  std::string unit = end;
  for (char& letter : unit) {
    letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  }
  int shift = -1;
  if (unit.empty() || unit == "B") shift = 0;
  if (unit == "K" || unit == "KB" || unit == "KIB") shift = 10;
  if (unit == "M" || unit == "MB" || unit == "MIB") shift = 20;
  if (unit == "G" || unit == "GB" || unit == "GIB") shift = 30;
  if (shift < 0 || number > UINT64_MAX >> shift) return false;
  *bytes = number << shift;
  return true;
}

// Returns a validator that converts a size to bytes and accepts |least| to |most|. |range|
// describes these limits in the error.
CLI::Validator size_of(uint64_t least, uint64_t most, const std::string& range) {
  return {[=](std::string& word) -> std::string {
            uint64_t bytes = 0;
            if (!parse_bytes(word, &bytes)) {
              return fmt::format("takes a size such as 8, 64K or 1M, not '{}'", word);
            }
            if (bytes < least || bytes > most) return fmt::format("{} is not {}", word, range);
            word = std::to_string(bytes);
            return "";
          },
          ""};
}

// Returns a validator that converts "auto" to 0. |other| checks and converts all other words.
CLI::Validator or_auto(const CLI::Validator& other) {
  return {[=](std::string& word) -> std::string {
            if (word != "auto") return other(word);
            word = "0";
            return "";
          },
          ""};
}

// --- checks beyond those of CLI11: each returns "" or the error ----------------------------------

std::string check_tests(const std::string& text, Options* options) {
  std::istringstream words(text.empty() ? "latency,bandwidth" : text);
  for (std::string word; std::getline(words, word, ',');) {
    const Words tests = tests_of(word);
    if (tests.empty()) {
      return unknown("test", word, known_tests()) + " (a host comes after the test)";
    }
    options->tests.insert(options->tests.end(), tests.begin(), tests.end());
  }
  return "";
}

// Reads the memory of both sides from "SIDE" or "SIDE:SIDE".
std::string read_memory(const std::string& text, SubjectOptions* subject) {
  Words sides;
  std::istringstream words(text);
  const auto is_number = [](const std::string& word) {
    return !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
  };
  for (std::string word; std::getline(words, word, ':');) {
    if (word == "plugin") {
      if (!std::getline(words, word, ':')) return "--memory plugin:NAME: the name is missing";
      sides.push_back(word);
      continue;
    }
    if (!sides.empty() && sides.back() == "opencl" && is_number(word)) {
      sides.back() += ":" + word;
      continue;
    }
    sides.push_back(word == "sim" ? "sim-address" : word);
    if (!is_one_of(sides.back(), kMemories)) {
      return unknown("memory", sides.back(), kMemories) +
             ", sim, opencl:N, plugin:NAME; for both sides, or SIDE0:SIDE1";
    }
  }
  if (sides.empty() || sides.size() > 2) return "--memory is SIDE or SIDE0:SIDE1";
  subject->first_memory = sides.front();
  subject->second_memory = sides.back();
  return "";
}

std::string check_memory(const std::string& text, Options* options) {
  if (text.empty()) return "";
  const SubjectOptions& subject = options->subject;
  std::string wrong = read_memory(text, &options->subject);
  if (!wrong.empty()) return wrong;
  const auto may_be_direct = [](const std::string& side) {
    return side == "host" || side == "sim-address";
  };
  const bool stages = std::any_of(std::begin(kStagingTests), std::end(kStagingTests),
                                  [&](const char* test) { return options->asks_for(test); });
  if (stages && may_be_direct(subject.first_memory) && may_be_direct(subject.second_memory)) {
    return "staging needs memory that nobody but its device reaches: use --memory sim-handle on "
           "one side at least";
  }
  if (options->asks_for("overlap") && subject.second_memory != "host") {
    return "overlap watches the receive buffer: the second side's --memory must be host";
  }
  if (subject.first_memory == "host" && subject.second_memory == "host") return "";
  for (const char* test : {"links", "affinity"}) {
    if (options->asks_for(test)) return fmt::format("{} is measured in host memory only", test);
  }
  for (const char* test : {"put_latency", "fetch_add_latency", "fetch_add_rate"}) {
    if (options->asks_for(test)) {
      return fmt::format("{} reads and changes words of memory: --memory must be host", test);
    }
  }
  return "";
}

std::string check_stream(Options* options) {
  SubjectOptions& subject = options->subject;
  if (options->asks_for(kPost)) subject.stream = true;
  if (!subject.stream) return "";
  for (const std::string& test : options->tests) {
    if (!is_one_of(test, stream_tests()) && find_collective(test) == nullptr) {
      return fmt::format("{} is not measured in the order of a stream; these are: {}, collectives",
                         test, fmt::join(stream_tests(), ", "));
    }
  }
  if (subject.first_memory == "host" || subject.second_memory == "host") {
    return "streams are those of devices: --stream needs --memory of a device on both sides";
  }
  if (options->compares()) return "--stream measures hetcomm alone: leave out --compare";
  if (subject.progress == "caller") return "--stream needs --progress thread";
  subject.progress = "thread";
  return "";
}

std::string check_sizes(const Options& options) {
  const SizeOptions& sizes = options.sizes;
  if (sizes.first_bytes && sizes.last_bytes && *sizes.first_bytes > *sizes.last_bytes) {
    return fmt::format("the first size (-b {}) is larger than the last (-e {})",
                       size_text(*sizes.first_bytes), size_text(*sizes.last_bytes));
  }
  if (sizes.factor != 0 && sizes.factor <= 1) return "-f must be above 1";
  if (sizes.first_bytes == 0u && options.asks_for("put_latency")) {
    return "put_latency waits for the last byte of a message: -b must be above 0";
  }
  return "";
}

std::string check_places(const Options& options) {
  const bool connects = !options.meeting.host.empty();
  if (options.meeting.listen && connects) {
    return "--listen waits for the other host: leave out the host";
  }
  if (!options.meeting.listen && !connects) return "";
  if (options.compares()) return "--compare measures on one host: leave out --listen and the host";
  return options.subject.ranks > 2
             ? "a measurement between two hosts has two ranks: leave out --ranks"
             : "";
}

std::string check_settings(const Options& options) {
  const SettingOptions& settings = options.settings;
  for (const std::string& test : options.tests) {
    if (!settings.algorithms.empty() && find_collective(test) == nullptr) {
      return fmt::format(
          "--algorithm chooses among algorithms of collective operations, and {} is none", test);
    }
  }
  if (!settings.algorithms.empty() && options.compares()) {
    return "--algorithm measures hetcomm alone: leave out --compare";
  }
  if (!settings.interleave) return "";
  if (options.compares()) return "--interleave measures hetcomm alone: leave out --compare";
  if (options.subject.transports.size() < 2 && settings.rails.size() < 2 &&
      settings.pins.size() < 2 && settings.algorithms.size() < 2) {
    return "--interleave needs several values of --transport, --staging-memory, --rails or "
           "--algorithm";
  }
  return "";
}

// Returns an error if an option in |names| was given although none of |tests| is measured; ""
// otherwise.
std::string check_only_for(const CLI::App& app, const Options& options, const Words& tests,
                           const Words& names) {
  const bool any = std::any_of(names.begin(), names.end(),
                               [&](const std::string& name) { return app.count(name) > 0; });
  const bool is_asked = std::any_of(tests.begin(), tests.end(), [&](const std::string& test) {
    return options.asks_for(test.c_str());
  });
  if (!any || is_asked) return "";
  return fmt::format("{} {} for {}", fmt::join(names, ", "), names.size() > 1 ? "are" : "is",
                     fmt::join(tests, " and "));
}

std::string check_pipeline(const Options& options) {
  if (!options.asks_for("pipeline")) {
    return is_one_of("none", options.queue.computes) ? "--compute none is for pipeline" : "";
  }
  if (options.queue.computes.size() > 1) return "pipeline takes one --compute";
  const std::vector<int>& counts = options.pipeline.micro_batches;
  return counts.size() == 2 && counts[0] < counts[1]
             ? ""
             : "--micro-batches takes two numbers, the smaller one first";
}

// Checks the transport of a pipeline over emulated links. The emulated hosts can only use tcp.
std::string check_pipeline_links(const Options& options) {
  const Words& transports = options.subject.transports;
  if (!options.pipeline.makes_links() || transports.empty()) return "";
  return transports == Words{"tcp"} ? "" : "--delays and --rates are measured over tcp";
}

// Checks the options of a comparison with torch, for which the Python driver starts the ranks.
std::string check_pipeline_peers(const Options& options) {
  if (!options.asks_for("pipeline")) return "--compare torch is for pipeline";
  if (options.peers.names != Words{"torch"}) return "pipeline is compared with torch only";
  if (options.queue.computes != Words{"timer"}) {
    return "--compare torch takes --compute timer only";
  }
  return options.subject.transports.empty() && options.subject.progress.empty()
             ? ""
             : "--compare torch takes no --transport and no --progress: torch chooses them";
}

std::string check_queue(const CLI::App& app, const Options& options) {
  const SubjectOptions& subject = options.subject;
  if (!is_one_of("share", options.queue.patterns)) {
    return app.count("--weights") > 0 ? "--weights is for --pattern share" : "";
  }
  if (options.queue.patterns.size() > 1 || options.output.format == "osu") {
    return "--pattern share is measured alone, and has no format osu";
  }
  return subject.first_memory != "host" || subject.second_memory != "host"
             ? "--pattern share is measured in host memory only"
             : "";
}

std::string check_job_tests(const Options& options) {
  const auto found = std::find_if(options.tests.begin(), options.tests.end(), measures_job);
  if (found == options.tests.end()) return "";
  const std::string& test = *found;
  if (options.tests.size() > 1) return test + " is measured alone: leave out the other tests";
  if (options.meeting.listen || !options.meeting.host.empty()) {
    return test +
           " measures a job: start its ranks by mpirun or torchrun, or on this host by --ranks";
  }
  if (options.subject.transports.size() > 1) {
    return test + " is measured over one --transport, or over auto";
  }
  if (options.settings.interleave || (options.compares() && test != "pipeline")) {
    return test + " measures hetcomm alone: leave out --compare and --interleave";
  }
  Words formats = {"table", "json"};
  if (test == "queue") formats.emplace_back("osu");
  if (!is_one_of(options.output.format, formats)) {
    return fmt::format("the --format of {} is {}, not '{}'", test, fmt::join(formats, " or "),
                       options.output.format);
  }
  if ((test == "queue" || test == "affinity") && !options.output.plot.empty()) {
    return test + " has no picture: leave out --plot";
  }
  return "";
}

// --- declarations: as in --help ------------------------------------------------------------------

class HelpFormat : public CLI::Formatter {
 public:
  HelpFormat() { column_width(25); }
  std::string make_usage(const CLI::App*, std::string) const override { return ""; }
  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override {
    std::string text = "  " + group + ":\n";
    for (const CLI::Option* option : options) text += make_option(option, is_positional);
    return text;
  }
};

// Declares the options of one group.
class Group {
 public:
  Group(CLI::App* app, const char* name) : app_(app), name_(name) {}

  template <typename Value>
  CLI::Option* add(const char* names, const char* text, Value& value, const char* help) {
    return app_->add_option(names, value, help)->option_text(text)->group(name_);
  }
  // Declares an option that takes a comma-separated list.
  template <typename Value>
  CLI::Option* add_list(const char* names, const char* text, Value& value, const char* help) {
    return add(names, text, value, help)->delimiter(',')->allow_extra_args(false);
  }
  CLI::Option* add_flag(const char* names, bool& value, const char* help) {
    return app_->add_flag(names, value, help)->group(name_);
  }

 private:
  CLI::App* app_;
  const char* name_;
};

void declare_sizes(CLI::App* app, SizeOptions* sizes) {
  Group group(app, "Sizes and repetitions");
  // MPI stores a message's size in an int.
  const CLI::Validator size = size_of(0, (uint64_t{1} << 31) - 1, "below 2G");
  group
      .add("-b,--begin", "SIZE", sizes->first_bytes,
           "first size, such as 8, 64K or 1M (8; overlap: 4K; bandwidth\n"
           "of put and get: 64K; staging: 4M)")
      ->transform(size);
  group
      .add("-e,--end", "SIZE", sizes->last_bytes,
           "last size (64M; msgrate and latency of one-sided: 4K; with\n"
           "--compare at most 16M, put and get: 64M)")
      ->transform(size);
  group.add("-f,--factor", "F", sizes->factor,
            "each size is F times the one before (2; overlap, staging,\n"
            "bandwidth of put and get: 4; with --compare 8 and 16)");
  group
      .add("-n,--iterations", "N", sizes->iterations,
           "messages for each size (as many as fill --seconds)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  group
      .add("-w,--warmup", "N", sizes->warmup,
           "messages before them (with -n a tenth of N, else what\n"
           "finding the number takes)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  group
      .add("--seconds", "S", sizes->seconds,
           "time of one pass over one size (0.05; with --compare 0.02)")
      ->check(CLI::Range(0.0001, 3600.0));
  group
      .add("--window", "N", sizes->window,
           "messages in flight (64; msgrate, fetch_add_rate: 16;\n"
           "staging: 4)")
      ->check(CLI::Range(1, 16384));
}

void declare_subject(CLI::App* app, SubjectOptions* subject, std::string* memory,
                     std::string* bind) {
  Group group(app, "What is measured");
  group.add("--ranks", "N", subject->ranks, "processes (2; msgrate: 4; reshard: 8)")
      ->check(CLI::Range(2, 128));
  group
      .add_list("--transport", "T,...", subject->transports,
                "one run for each: shm, tcp, rdma, or auto, which leaves the\n"
                "choice to hetcomm (shm,tcp; between hosts: auto)")
      ->transform(one_of("transport", {"auto", "shm", "tcp", "rdma"}));
  group.add("--nic", "NAME,...", subject->nic,
            "RDMA devices, for the ranks and for perftest: the same as\n"
            "HETCOMM_RDMA_NIC");
  group.add("--memory", "M[:M]", *memory,
            "memory of rank 0 and of the others (reshard: of the two\n"
            "halves of the ranks): host, sim-handle, sim-address (host);\n"
            "sim is sim-address; opencl, or opencl:N for the device\n"
            "of that number; plugin:NAME is a kind of\n"
            "HETCOMM_DEVICE_PLUGINS");
  group
      .add("--progress", "MODE", subject->progress,
           "caller or thread (what HETCOMM_PROGRESS says; overlap:\n"
           "both)")
      ->transform(one_of("progress mode", {"caller", "thread"}));
  group.add_flag("--stream", subject->stream,
                 "messages take their place in a stream of the device; those\n"
                 "of a window are a group. Needs --memory of devices");
  group
      .add("--bind", "core|none", *bind, "bind each rank to a core where there are as many (core)")
      ->transform(one_of("binding", {"core", "none"}));
  group.add_flag("--check", subject->check,
                 "compare every byte, also of further messages with\n"
                 "patterns of their own");
}

void declare_settings(CLI::App* app, SettingOptions* settings) {
  Group group(app, "Settings of hetcomm, one run for each value");
  group
      .add_list("--chunk", "SIZE,...", settings->chunks,
                "of staging; auto: as hetcomm chooses (auto,64K,256K,1M)")
      ->transform(or_auto(size_of(4 << 10, 1 << 30, "auto or a size from 4K to 1G")));
  group
      .add_list("--depth", "N,...", settings->depths,
                "of staging: chunks of a message under way (auto)")
      ->transform(or_auto(CLI::Range(1, 16)));
  group
      .add_list("--staging-memory", "KIND,...", settings->pins,
                "pinned, pageable: chunks of staged transfers lie in memory\n"
                "that devices have pinned, or not")
      ->transform(one_of("staging memory", {"pinned", "pageable"}));
  group
      .add_list("--rails", "N,...", settings->rails,
                "most connections of a pair that share its bulk data: as\n"
                "HETCOMM_RAILS")
      ->check(CLI::Range(1, 64));
  group.add_list("--algorithm", "N,...", settings->algorithms,
                 "of collective operations: ring, two_level, ... (one that an\n"
                 "operation does not have is answered with those that it\n"
                 "has); chosen: what is taken without");
  group.add_flag("--interleave", settings->interleave,
                 "measure several --transport, --staging-memory, --rails or\n"
                 "--algorithm in turn, --rounds times: medians, and ratios\n"
                 "of the first to each other one");
}

void declare_queue(CLI::App* app, QueueOptions* queue, ShareOptions* share) {
  Group group(app, "Test queue");
  group.add_list("--pattern", "P,...", queue->patterns, "stream, 1f1b, or share (stream,1f1b)")
      ->transform(one_of("pattern", {"stream", "1f1b", "share"}));
  group
      .add_list("--compute", "C,...", queue->computes, "timer, burn, or for pipeline none (timer)")
      ->transform(one_of("computation", {"timer", "burn", "none"}));
  group.add_list("--warmups", "N,...", queue->warmups, "items ahead in 1f1b (3,4)")
      ->check(CLI::Range(1, 64));
  group
      .add_list("--ratios", "R,...", queue->ratios,
                "computation over communication of an item (0.5,1,2)")
      ->check(CLI::Range(0.01, 100.0));
  group.add_list("--weights", "W,...", share->weights, "of the queues of share (3,1)")
      ->check(CLI::Range(1, 1000));
}

void declare_pipeline(CLI::App* app, PipelineOptions* pipeline) {
  Group group(app, "Test pipeline");
  group.add_list("--schedules", "S,...", pipeline->schedules,
                 "by name, see `hetcomm_info --help`\n"
                 "(1f1b,eager-1f1b,h-1f1b,zb-h1)");
  group.add("--stage-ms", "T", pipeline->stage_ms, "computation of a rank for a micro-batch (20)")
      ->check(CLI::Range(0.001, 60000.0));
  group.add_list("--micro-batches", "N,M", pipeline->micro_batches, "of the two runs (64,192)")
      ->check(CLI::Range(1, 1 << 20));
  group
      .add_list("--delays", "MS,...", pipeline->delays_ms,
                "joins two hosts, which are network namespaces, by\n"
                "links with these delays; needs root")
      ->check(CLI::Range(0.0, 10000.0));
  group
      .add_list("--rates", "MBIT,...", pipeline->rates_mbit,
                "of these links in each direction; 0 is no limit (0)")
      ->check(CLI::Range(0, 1000000));
}

void declare_reshard(CLI::App* app, ReshardOptions* reshard) {
  Group group(app, "Test reshard");
  app->add_option_function<Words>(
         "--cases",
         [reshard](const Words& words) {
           for (const std::string& word : words) {
             const std::string wrong = tools::parse_case(word, &reshard->cases.emplace_back());
             if (!wrong.empty()) throw CLI::ValidationError("--cases", wrong);
           }
         },
         "pairs of layouts (all pairs of DxS with as many ranks)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->option_text("CASE,...")
      ->group("Test reshard");
  group.add_list("--strategies", "S,...", reshard->strategies, "(all)")
      ->transform(
          one_of("strategy", {std::begin(tools::kStrategies), std::end(tools::kStrategies)}));
  group.add("--slice", "SIZE", reshard->slice_bytes, "about the size of a message")
      ->transform(size_of(0, UINT64_MAX, ""));
  group.add_flag("--simulate", reshard->simulate, "without a job, by a simulation of flows");
}

void declare_places(CLI::App* app, Options* options) {
  Group hosts(app, "Two hosts");
  hosts.add_flag("--listen", options->meeting.listen,
                 "wait for a hetcomm_bench on another host, which brings\n"
                 "tests and options along; both print the results");
  hosts.add("-p,--port", "PORT", options->meeting.port, "port of the listening side (29555)")
      ->check(CLI::Range(1, 65535));
  Group comparison(app, "Comparison");
  comparison
      .add_list("--compare", "PEER,...", options->peers.names,
                "any of ucx, mpi, gloo, iperf3, memcpy, perftest. Peers\n"
                "come from build/peers (`make peers` installs current\n"
                "releases), else from the system. Needs Python 3.\n"
                "pipeline: torch, with hetcomm's package for it.")
      ->transform(one_of("peer", {"ucx", "mpi", "gloo", "iperf3", "memcpy", "perftest", "torch"}));
  comparison
      .add("--rounds", "N", options->rounds,
           "rounds (15), also of --interleave. Each measures every\n"
           "implementation once.")
      ->check(CLI::Range(1, 1000));
  comparison.add("--peers", "DIR", options->peers.folder,
                 "folder of installed peers (build/peers)");
  app->add_option_function<Words>(
         "--peer",
         [options](const Words& entries) {
           for (const std::string& entry : entries) {
             const size_t equals = entry.find('=');
             const std::string peer = entry.substr(0, equals);
             if (equals == std::string::npos || !is_one_of(peer, {"mpi", "ucx", "iperf3"})) {
               throw CLI::ValidationError(
                   "--peer",
                   fmt::format("takes mpi=PATH, ucx=PATH or iperf3=PATH, not '{}'", entry));
             }
             options->peers.paths.emplace_back(peer, entry.substr(equals + 1));
           }
         },
         "use this one instead: mpi=PREFIX or mpi=MPICC, several\n"
         "times if wanted; ucx=PREFIX; iperf3=PROGRAM")
      ->allow_extra_args(false)
      ->option_text("NAME=PATH")
      ->group("Comparison");
}

void declare_output(CLI::App* app, OutputOptions* output) {
  Group group(app, "Output");
  group.add("--format", "FORMAT", output->format, "table, osu, csv or json (table)")
      ->transform(one_of("format", {"table", "osu", "csv", "json"}));
  group.add("-o,--output", "FILE", output->file, "write there, not to standard output");
  group.add("--plot", "FILE", output->plot,
            "draw medians by size: of the rounds of a comparison, else\n"
            "of single messages or windows. A colour stands for an\n"
            "implementation, dashes for a transport. SVG, or by the\n"
            "name .png or .pdf. Needs Python 3 and matplotlib, but for\n"
            "links.");
  group
      .add("--timeout", "S", output->silence_seconds,
           "give up when nothing was measured for S seconds (300)")
      ->check(CLI::Range(1.0, 86400.0))
      ->each([output](const std::string&) { output->silence_given = true; });
  app->set_help_flag("-h,--help", "this text")->group("Output");
  app->set_version_flag(
         "-V,--version",
         fmt::format("hetcomm_bench {} ({})", hetcomm_version_string(), hetcomm_build_string()),
         "version and build")
      ->group("Output");
}

// --- errors --------------------------------------------------------------------------------------

// Returns the error for the first argument that is not a known option.
std::string unknown_option(const CLI::App& app) {
  const Words rest = app.remaining();
  if (rest.empty()) return "unknown option";
  if (!rest.front().starts_with('-')) {
    return fmt::format(
        "'{}' is one word too many: the tests are one list with commas, and a host "
        "may follow",
        rest.front());
  }
  Words known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  return fmt::format("unknown option '{}'{}", rest.front(), did_you_mean(rest.front(), known));
}

std::string check_all(const CLI::App& app, const std::string& memory, Options* options) {
  std::string wrong = check_memory(memory, options);
  if (wrong.empty()) wrong = check_stream(options);
  if (wrong.empty()) wrong = check_sizes(*options);
  if (wrong.empty()) wrong = check_places(*options);
  if (wrong.empty()) wrong = check_settings(*options);
  if (wrong.empty()) {
    wrong = check_only_for(app, *options, {"queue"},
                           {"--pattern", "--warmups", "--ratios", "--weights"});
  }
  if (wrong.empty()) wrong = check_only_for(app, *options, {"queue", "pipeline"}, {"--compute"});
  if (wrong.empty()) {
    wrong = check_only_for(app, *options, {"pipeline"},
                           {"--schedules", "--stage-ms", "--micro-batches", "--delays", "--rates"});
  }
  if (wrong.empty()) wrong = check_pipeline(*options);
  if (wrong.empty()) wrong = check_pipeline_links(*options);
  if (wrong.empty() && (is_one_of("torch", options->peers.names) ||
                        (options->compares() && options->asks_for("pipeline")))) {
    wrong = check_pipeline_peers(*options);
  }
  if (wrong.empty()) wrong = check_queue(app, *options);
  if (wrong.empty()) {
    wrong = check_only_for(app, *options, {"reshard"},
                           {"--cases", "--strategies", "--slice", "--simulate"});
  }
  return wrong.empty() ? check_job_tests(*options) : wrong;
}

Parsed complain(const std::string& wrong) {
  std::fprintf(stderr, "hetcomm_bench: %s\nTry 'hetcomm_bench --help'.\n", wrong.c_str());
  return Parsed::kWrong;
}

}  // namespace

Parsed parse_options(int argc, char** argv, Options* options) {
  CLI::App app(kHelpBefore);
  app.formatter(std::make_shared<HelpFormat>());
  app.footer(kHelpAfter);
  std::string tests;
  std::string memory;
  std::string bind = "core";
  app.add_option("test", tests)->group("");
  app.add_option("host", options->meeting.host)->group("");
  declare_sizes(&app, &options->sizes);
  declare_subject(&app, &options->subject, &memory, &bind);
  declare_settings(&app, &options->settings);
  declare_queue(&app, &options->queue, &options->share);
  declare_pipeline(&app, &options->pipeline);
  declare_reshard(&app, &options->reshard);
  declare_places(&app, options);
  declare_output(&app, &options->output);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return Parsed::kDone;
  } catch (const CLI::CallForVersion& version) {
    std::printf("%s\n", version.what());
    return Parsed::kDone;
  } catch (const CLI::ExtrasError&) {
    return complain(unknown_option(app));
  } catch (const CLI::ParseError& error) {
    return complain(error.what());
  }
  options->subject.bind = bind == "core";
  std::string wrong = check_tests(tests, options);
  if (wrong.empty()) wrong = check_all(app, memory, options);
  // The ranks and the peers inherit the variable from this process.
  if (!options->subject.nic.empty()) {
    setenv("HETCOMM_RDMA_NIC", options->subject.nic.c_str(), 1);
  }
  return wrong.empty() ? Parsed::kRun : complain(wrong);
}

}  // namespace bench
