/* Counts the lines, words and bytes of its input. An ordinary C program: clang --target=wasm32-wasi -Os -o main.wasm main.c */
#include <ctype.h>
#include <stdio.h>

int main(void) {
  long lines = 0, words = 0, bytes = 0;
  int inside = 0;
  for (int c; (c = getchar()) != EOF; bytes++) {
    if (c == '\n') lines++;
    if (isspace(c)) inside = 0;
    else if (!inside) inside = 1, words++;
  }
  printf("{\"lines\":%ld,\"words\":%ld,\"bytes\":%ld}\n", lines, words, bytes);
  return 0;
}
