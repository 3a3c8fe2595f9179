#include "bench/compare.h"

#include <algorithm>
#include <iterator>
#include <map>

#include <fmt/core.h>

#include "bench/probe.h"
#include "bench/report.h"
#include "src/present/statistics.h"

namespace bench {
namespace {

constexpr const char* kMixed = "mixed";
constexpr const char* kLeftOut = " is left out of ";

// Converts |text| to one line, as required for notes.
std::string one_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// Adds a note once, even if it applies to several transports.
void add_note(const std::string& note, Report* report) {
  if (std::count(report->notes.begin(), report->notes.end(), note) == 0) {
    report->notes.push_back(note);
  }
}

// A Contest holds one work, the implementations that take part, and their trials.
struct Contest {
  const Work* work = nullptr;
  size_t number = 0;  // index of the work
  std::vector<size_t> entrants;
  std::vector<std::vector<Trial>> trials;  // indexed by implementation
};

Contest make_contest(const std::vector<Work>& works, size_t number,
                     const std::vector<Implementation>& implementations, Report* report) {
  const Work& work = works[number];
  Contest contest;
  contest.work = &work;
  contest.number = number;
  contest.trials.resize(implementations.size());
  for (size_t i = 0; i < implementations.size(); ++i) {
    const Implementation& implementation = implementations[i];
    const std::string& refusal = implementation.works.at(number).refusal;
    if (refusal.empty()) {
      contest.entrants.push_back(i);
    } else if (refusal != "not over this transport") {
      add_note(fmt::format("{}{}{}: {}", implementation.info.name, kLeftOut, work.workload.test,
                           refusal),
               report);
    }
  }
  return contest;
}

std::string one_trial(const Implementation& implementation, const Contest& contest, int round,
                      double silence_seconds, std::vector<Trial>* trials) {
  Trial trial;
  trial.round = round;
  const double before = probe_hand_over_us();
  const std::string failure =
      measure(implementation, contest.number, *contest.work, silence_seconds,
              [&](const Row& row) { trial.rows.push_back(row); });
  const double after = probe_hand_over_us();
  trial.placement = placement_between(before, after);
  trial.hand_over_us = (before + after) / 2;
  if (failure.empty()) trials->push_back(std::move(trial));
  return failure;
}

std::map<std::string, std::vector<double>> placements_of(const std::vector<Contest>& contests) {
  std::map<std::string, std::vector<double>> placements;
  for (const Contest& contest : contests) {
    for (const std::vector<Trial>& trials : contest.trials) {
      for (const Trial& trial : trials) placements[trial.placement].push_back(trial.hand_over_us);
    }
  }
  return placements;
}

// Adds the counts of placements to |report|. Returns the most frequent placement other than
// "mixed".
std::string count_placements(const std::vector<Contest>& contests, Report* report) {
  std::string most;
  size_t launches = 0;
  for (const auto& [placement, times] : placements_of(contests)) {
    report->placements.push_back(
        {placement, static_cast<int>(times.size()), hetcomm::present::median(times)});
    if (placement == kMixed || times.size() <= launches) continue;
    most = placement;
    launches = times.size();
  }
  return most;
}

bool same_point(const Row& a, const Row& b) {
  return a.measured.point.bytes == b.measured.point.bytes;
}

// Pairs holds the figures of both sides, paired by point, placement and round. A ratio above 1
// favours |ours|.
struct Pairs {
  std::vector<double> ours;
  std::vector<double> theirs;
  std::vector<double> ratios;
};

Pairs pairs_of(const std::vector<Trial>& ours, const std::vector<Trial>& theirs, const Row& point,
               const std::string& placement) {
  Pairs pairs;
  for (const Trial& our : ours) {
    for (const Trial& their : theirs) {
      if (our.round != their.round || our.placement != placement || their.placement != placement) {
        continue;
      }
      const auto matches = [&](const Row& row) { return same_point(row, point); };
      const auto a = std::find_if(our.rows.begin(), our.rows.end(), matches);
      const auto b = std::find_if(their.rows.begin(), their.rows.end(), matches);
      if (a == our.rows.end() || b == their.rows.end()) continue;
      // Empty messages have no bandwidth.
      if (!(figure(*a) > 0) || !(figure(*b) > 0)) continue;
      pairs.ours.push_back(figure(*a));
      pairs.theirs.push_back(figure(*b));
      const double ratio = figure(*a) / figure(*b);
      pairs.ratios.push_back(smaller_is_better(point.test) ? 1 / ratio : ratio);
    }
  }
  return pairs;
}

// Adds |rows| to the report. An implementation with a single transport is measured for each
// transport of hetcomm, but its rows are added only once.
void add_rows(const Implementation& implementation, std::vector<Row> rows, Report* report) {
  if (rows.empty()) return;
  const auto is_same = [&](const Row& row) {
    return row.impl == implementation.info.name && row.test == rows.front().test &&
           row.progress == rows.front().progress;
  };
  if (!implementation.only_transport.empty() &&
      std::any_of(report->rows.begin(), report->rows.end(), is_same)) {
    return;
  }
  std::move(rows.begin(), rows.end(), std::back_inserter(report->rows));
}

// Returns an error that explains why there is no peer to compare with.
std::string nobody(const Report& report) {
  std::string why;
  for (const std::string& note : report.notes) {
    if (note.find(kLeftOut) != std::string::npos) why += (why.empty() ? "" : "; ") + note;
  }
  return "no peer can do any of this" + (why.empty() ? " over these transports" : ": " + why);
}

std::string run_rounds(const std::vector<Implementation>& implementations, int rounds,
                       double silence_seconds, const std::function<void(const std::string&)>& tell,
                       std::vector<Contest>* contests, Report* report) {
  for (int round = 0; round < rounds; ++round) {
    for (Contest& contest : *contests) {
      // Iterates over a copy, since a peer that fails is removed from the entrants.
      const size_t count = contest.entrants.size();
      std::vector<size_t> order = contest.entrants;
      std::rotate(order.begin(),
                  order.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(round) % count),
                  order.end());
      for (const size_t index : order) {
        const Implementation& implementation = implementations[index];
        tell(fmt::format("round {}/{}: {} over {}: {}", round + 1, rounds,
                         contest.work->workload.test, contest.work->transport,
                         implementation.info.name));
        const std::string failure =
            one_trial(implementation, contest, round, silence_seconds, &contest.trials[index]);
        if (failure.empty()) continue;
        if (index == 0) return failure;
        std::erase(contest.entrants, index);
        report->notes.push_back(fmt::format(
            "{} failed in {} over {} and is left out from then on: {}", implementation.info.name,
            contest.work->workload.test, contest.work->transport, one_line(failure)));
      }
    }
  }
  return "";
}

}  // namespace

std::vector<Ratio> ratios_of(const std::vector<Trial>& ours, const std::vector<Trial>& theirs) {
  std::vector<Ratio> ratios;
  if (ours.empty() || theirs.empty()) return ratios;
  std::vector<std::string> placements;
  for (const Trial& trial : ours) {
    if (trial.placement == kMixed) continue;
    if (std::find(placements.begin(), placements.end(), trial.placement) == placements.end()) {
      placements.push_back(trial.placement);
    }
  }
  for (const std::string& placement : placements) {
    for (const Row& point : ours.front().rows) {
      const Pairs pairs = pairs_of(ours, theirs, point, placement);
      if (pairs.ratios.empty()) continue;
      Ratio ratio;
      ratio.peer = theirs.front().rows.front().impl;
      ratio.test = point.test;
      ratio.transport = point.transport;
      ratio.progress = point.progress;
      ratio.placement = placement;
      ratio.point = point.measured.point;
      ratio.rounds = static_cast<int>(pairs.ratios.size());
      ratio.ours = hetcomm::present::median(pairs.ours);
      ratio.theirs = hetcomm::present::median(pairs.theirs);
      ratio.median = hetcomm::present::median(pairs.ratios);
      ratio.smallest = *std::min_element(pairs.ratios.begin(), pairs.ratios.end());
      ratio.largest = *std::max_element(pairs.ratios.begin(), pairs.ratios.end());
      ratios.push_back(ratio);
    }
  }
  return ratios;
}

std::vector<Row> median_rows(const std::vector<Trial>& trials, const std::string& placement) {
  const bool any = std::any_of(trials.begin(), trials.end(),
                               [&](const Trial& trial) { return trial.placement == placement; });
  std::vector<Row> rows;
  if (trials.empty()) return rows;
  for (const Row& point : trials.front().rows) {
    std::vector<Row> candidates;
    for (const Trial& trial : trials) {
      if (any && trial.placement != placement) continue;
      for (const Row& row : trial.rows) {
        if (same_point(row, point)) candidates.push_back(row);
      }
    }
    if (candidates.empty()) continue;
    std::sort(candidates.begin(), candidates.end(),
              [](const Row& a, const Row& b) { return figure(a) < figure(b); });
    Row middle = candidates[candidates.size() / 2];
    // Wrong bytes in any round must be reported.
    for (const Row& row : candidates) {
      middle.measured.wrong = std::max(middle.measured.wrong, row.measured.wrong);
    }
    rows.push_back(std::move(middle));
  }
  return rows;
}

std::string compare(const std::vector<Implementation>& implementations,
                    const std::vector<Work>& works, int rounds, double silence_seconds,
                    const std::function<void(const std::string&)>& tell, Report* report) {
  std::vector<Contest> contests;
  for (size_t number = 0; number < works.size(); ++number) {
    contests.push_back(make_contest(works, number, implementations, report));
  }
  for (size_t i = 1; i < implementations.size(); ++i) {
    const bool enters = std::any_of(contests.begin(), contests.end(), [&](const Contest& contest) {
      return std::count(contest.entrants.begin(), contest.entrants.end(), i) > 0;
    });
    if (enters) report->peers.push_back(implementations[i].info);
  }
  if (report->peers.empty()) return nobody(*report);
  const std::string failure =
      run_rounds(implementations, rounds, silence_seconds, tell, &contests, report);
  if (!failure.empty()) return failure;
  report->rounds = rounds;
  const std::string placement = count_placements(contests, report);
  for (const Contest& contest : contests) {
    for (size_t i = 0; i < implementations.size(); ++i) {
      add_rows(implementations[i], median_rows(contest.trials[i], placement), report);
      if (i == 0) continue;
      for (Ratio& ratio : ratios_of(contest.trials[0], contest.trials[i])) {
        report->ratios.push_back(std::move(ratio));
      }
    }
  }
  return "";
}

void compare_variants(std::vector<Row> rows, int rounds, Report* report) {
  // The placement of the cores was not probed, so all rounds count as one placement.
  constexpr const char* kAnywhere = "as they are";
  std::vector<std::vector<Trial>> variants;
  for (Row& row : rows) {
    const auto same = [&](const std::vector<Trial>& trials) {
      const Row& other = trials.front().rows.front();
      return other.test == row.test && other.variant == row.variant;
    };
    auto variant = std::find_if(variants.begin(), variants.end(), same);
    if (variant == variants.end()) variant = variants.emplace(variants.end());
    if (variant->empty() || variant->back().round != row.round) variant->emplace_back();
    Trial& trial = variant->back();
    trial.round = row.round;
    trial.placement = kAnywhere;
    trial.rows.push_back(std::move(row));
  }
  report->rounds = rounds;
  const std::vector<Trial>* first = nullptr;
  for (std::vector<Trial>& trials : variants) {
    const Row& row = trials.front().rows.front();
    const bool is_first = first == nullptr || first->front().rows.front().test != row.test;
    if (is_first) first = &trials;
    const std::string name = "hetcomm/" + row.variant;
    for (Trial& trial : trials) {
      for (Row& each : trial.rows) {
        if (!is_first) each.impl = name;
      }
    }
    for (Row& median : median_rows(trials, kAnywhere)) report->rows.push_back(std::move(median));
    if (is_first) continue;
    for (Ratio& ratio : ratios_of(*first, trials)) report->ratios.push_back(std::move(ratio));
  }
}

}  // namespace bench
