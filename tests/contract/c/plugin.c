/* The contract suite's guest in C; see tests/contract/README.md. */
#include "slime_plugin.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* So that the compiler does not leave the memory out. */
static char *volatile kept;

static slime_text trimmed(slime_text from) {
  while (from.length > 0 && strchr(" \t\r\n", from.text[0])) from.text++, from.length--;
  while (from.length > 0 && strchr(" \t\r\n", from.text[from.length - 1])) from.length--;
  return from;
}

slime_verdict slime_score(slime_rollout *item) {
  const char *word = slime_prompt(item).text;
  if (!strcmp(word, "equal")) {
    slime_text label;
    if (!slime_label(item, &label)) return slime_fail(SLIME_INVALID_GOLD, "no label, no verdict");
    slime_text response = slime_response(item);
    slime_text a = trimmed(response), b = trimmed(label);
    slime_verdict verdict = slime_reward(a.length == b.length && !memcmp(a.text, b.text, a.length));
    slime_metric(&verdict, "bytes", (double)response.length);
    return verdict;
  }
  if (!strcmp(word, "metadata")) {
    slime_text level;
    bool hit = slime_metadata(item, "level", &level) && !strcmp(level.text, "3") &&
               !strcmp(slime_metadata_json(item).text, "{\"level\":3}");
    return slime_reward(hit);
  }
  if (!strcmp(word, "finish")) {
    slime_verdict verdict = slime_reward(1);
    slime_metric(&verdict, "finish", slime_finish_reason(item));
    return verdict;
  }
  if (!strcmp(word, "fail")) return slime_fail(SLIME_OTHER, "I give up");
  if (!strcmp(word, "invalid")) return slime_fail(SLIME_INVALID_INPUT, "not this");
  if (!strcmp(word, "half")) {
    slime_verdict verdict = slime_reward(0.5);
    slime_metric(&verdict, "a", 1);
    slime_metric(&verdict, "b", -2.5);
    return verdict;
  }
  if (!strcmp(word, "two")) return slime_reward(2);
  if (!strcmp(word, "nan")) return slime_reward(NAN);
  if (!strcmp(word, "log")) {
    for (int i = 0; i < 100; i++) {
      char line[32];
      snprintf(line, sizeof line, "line %d", i);
      slime_log(1, line);
    }
    return slime_reward(1);
  }
  if (!strcmp(word, "throw")) abort();
  if (!strcmp(word, "loop"))
    for (volatile int n = 0;; n++) {
    }
  if (!strcmp(word, "memory"))
    for (;;) {
      char *block = malloc(1 << 20);
      if (block == NULL) abort();
      memset(block, 1, 1 << 20);
      kept = block;
    }
  return slime_reward(0);
}
