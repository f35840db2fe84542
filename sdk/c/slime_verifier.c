/* From the generated bindings to `slime_plugin.h`. What the host lends is freed when the call ends: the instance is
 * thrown away. */
#define SLIME_PLUGIN_IMPLEMENTATION
#include "slime_plugin.h"

#include "plugin.h"
#include "slime_manifest.h"

#include <stdlib.h>
#include <string.h>

extern const double slime_reward_min;
extern const double slime_reward_max;

struct slime_rollout {
  slime_plugin_rollouts_borrow_finished_t handle;
};

/* The host's text with a NUL after it. */
static slime_text terminated(plugin_string_t *from) {
  char *text = malloc(from->len + 1);
  if (text == NULL) abort();
  memcpy(text, from->ptr, from->len);
  text[from->len] = 0;
  slime_text result = {text, from->len};
  plugin_string_free(from);
  return result;
}

slime_text slime_prompt(slime_rollout *item) {
  plugin_string_t text;
  slime_plugin_rollouts_method_finished_prompt(item->handle, &text);
  return terminated(&text);
}

slime_text slime_response(slime_rollout *item) {
  plugin_string_t text;
  slime_plugin_rollouts_method_finished_response(item->handle, &text);
  return terminated(&text);
}

bool slime_label(slime_rollout *item, slime_text *label) {
  plugin_string_t text;
  if (!slime_plugin_rollouts_method_finished_label(item->handle, &text)) return false;
  *label = terminated(&text);
  return true;
}

bool slime_metadata(slime_rollout *item, const char *key, slime_text *json) {
  plugin_string_t name, text;
  plugin_string_set(&name, key);
  if (!slime_plugin_rollouts_method_finished_metadata(item->handle, &name, &text)) return false;
  *json = terminated(&text);
  return true;
}

slime_text slime_metadata_json(slime_rollout *item) {
  plugin_string_t text;
  slime_plugin_rollouts_method_finished_metadata_json(item->handle, &text);
  return terminated(&text);
}

int slime_finish_reason(slime_rollout *item) {
  slime_plugin_rollouts_finish_reason_t reason;
  return slime_plugin_rollouts_method_finished_finish_reason(item->handle, &reason) ? (int)reason : -1;
}

slime_verdict slime_reward(double reward) {
  slime_verdict verdict = {0};
  verdict.reward = reward;
  verdict.failure = -1;
  return verdict;
}

slime_verdict slime_fail(int failure, const char *message) {
  slime_verdict verdict = {0};
  verdict.failure = failure;
  verdict.message = message;
  return verdict;
}

void slime_metric(slime_verdict *verdict, const char *name, double value) {
  if (verdict->num_metrics >= SLIME_MAX_METRICS) return;
  verdict->metrics[verdict->num_metrics].name = name;
  verdict->metrics[verdict->num_metrics].value = value;
  verdict->num_metrics += 1;
}

void slime_log(int level, const char *line) {
  plugin_string_t text;
  plugin_string_set(&text, line);
  slime_plugin_log_log((slime_plugin_log_level_t)level, &text);
}

void exports_slime_plugin_verification_describe(exports_slime_plugin_verification_info_t *ret) {
  memset(ret, 0, sizeof *ret);
  plugin_string_dup(&ret->about.name, SLIME_PLUGIN_NAME);
  plugin_string_dup(&ret->about.version, SLIME_PLUGIN_VERSION);
  ret->reward_min = slime_reward_min;
  ret->reward_max = slime_reward_max;
}

bool exports_slime_plugin_verification_score(exports_slime_plugin_verification_own_finished_t item,
                                             exports_slime_plugin_verification_verdict_t *ret,
                                             exports_slime_plugin_verification_error_t *err) {
  slime_rollout rollout = {slime_plugin_rollouts_borrow_finished(item)};
  slime_verdict verdict = slime_score(&rollout);
  slime_plugin_rollouts_finished_drop_own(item);
  if (verdict.failure >= 0) {
    memset(err, 0, sizeof *err);
    err->code = (slime_plugin_types_error_code_t)verdict.failure;
    plugin_string_dup(&err->message, verdict.message == NULL ? "" : verdict.message);
    return false;
  }
  memset(ret, 0, sizeof *ret);
  ret->reward = verdict.reward;
  if (verdict.num_metrics > 0) {
    ret->metrics.ptr = calloc(verdict.num_metrics, sizeof *ret->metrics.ptr);
    if (ret->metrics.ptr == NULL) abort();
    ret->metrics.len = verdict.num_metrics;
    for (size_t i = 0; i < verdict.num_metrics; i++) {
      plugin_string_dup(&ret->metrics.ptr[i].name, verdict.metrics[i].name);
      ret->metrics.ptr[i].value = verdict.metrics[i].value;
    }
  }
  return true;
}
