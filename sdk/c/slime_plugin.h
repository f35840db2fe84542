/* Write a verifier in C: implement `slime_score`.
 *
 *     #include "slime_plugin.h"
 *     #include <string.h>
 *
 *     slime_verdict slime_score(slime_rollout *item) {
 *       slime_text label;
 *       if (!slime_label(item, &label)) return slime_fail(SLIME_INVALID_GOLD, "exact-match needs a label");
 *       slime_text response = slime_response(item);
 *       return slime_reward(response.length == label.length && !memcmp(response.text, label.text, label.length));
 *     }
 *
 * Texts are UTF-8, end with a NUL that `length` does not count, and live until `slime_score` returns. Nothing
 * survives between calls. For other worlds include the generated `plugin.h` instead, and implement its exports.
 * Read `wit/verifier.wit` next. */
#ifndef SLIME_PLUGIN_H
#define SLIME_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
  const char *text;
  size_t length;
} slime_text;

/* One finished rollout, to be read and not changed. */
typedef struct slime_rollout slime_rollout;

/* The prompt as text; of a conversation, the last user message. */
slime_text slime_prompt(slime_rollout *item);
/* What the policy wrote, special tokens left out. */
slime_text slime_response(slime_rollout *item);
/* The gold answer; false where the row has none. */
bool slime_label(slime_rollout *item, slime_text *label);
/* One member of the prompt's metadata as a JSON document; false where there is none. */
bool slime_metadata(slime_rollout *item, const char *key, slime_text *json);
/* All metadata, as a JSON object. */
slime_text slime_metadata_json(slime_rollout *item);
/* 0 stop, 1 length, 2 abort; -1 where the policy never wrote. */
int slime_finish_reason(slime_rollout *item);

/* Kinds of failure; `wit/types.wit` says what the host makes of each. */
enum {
  SLIME_INVALID_INPUT = 0,
  SLIME_INVALID_GOLD = 1,
  SLIME_INTERNAL = 7,
  SLIME_OTHER = 8,
};

#define SLIME_MAX_METRICS 64

typedef struct {
  double reward;
  /* -1, or one of the kinds above; then `message` says more and the reward does not count. */
  int failure;
  const char *message;
  struct {
    const char *name;
    double value;
  } metrics[SLIME_MAX_METRICS];
  size_t num_metrics;
} slime_verdict;

/* A reward without parts. */
slime_verdict slime_reward(double reward);
/* A failure of this rollout only. The message is copied when `slime_score` returns. */
slime_verdict slime_fail(int failure, const char *message);
/* Add a named part; what exceeds SLIME_MAX_METRICS is dropped. */
void slime_metric(slime_verdict *verdict, const char *name, double value);
/* Write one line to the host's log: 0 trace, 1 debug, 2 info, 3 warn, 4 error. */
void slime_log(int level, const char *line);

/* Yours. Same input, same verdict. */
slime_verdict slime_score(slime_rollout *item);

/* The range of the rewards; define these before the include where it is another one. */
#ifndef SLIME_REWARD_MIN
#define SLIME_REWARD_MIN 0.0
#endif
#ifndef SLIME_REWARD_MAX
#define SLIME_REWARD_MAX 1.0
#endif
#ifndef SLIME_PLUGIN_IMPLEMENTATION
const double slime_reward_min = SLIME_REWARD_MIN;
const double slime_reward_max = SLIME_REWARD_MAX;
#endif

#endif
