# SPDX-License-Identifier: Apache-2.0
# Completion for kdtreectl: verbs and options are read from the program's own --help.
_kdtreectl() {
  local word verb="" index
  local current=${COMP_WORDS[COMP_CWORD]}
  for ((index = 1; index < COMP_CWORD; index++)); do
    word=${COMP_WORDS[index]}
    [[ $word == -* || ${COMP_WORDS[index - 1]} == --root ]] || { verb=$word; break; }
  done
  local help words
  help=$(kdtreectl ${verb:+"$verb"} --help 2>/dev/null) || return 0
  words=$(grep -oE -- '(^|[ ,])--?[a-z][a-z-]*' <<<"$help" | tr -d ' ,')
  if [[ -z $verb ]]; then
    words+=" $(awk '/^(Subcommands|Verbs|SUBCOMMANDS)/ {on = 1; next} on && /^  ?[a-z]/ {print $1}' <<<"$help")"
  elif [[ $verb == mode ]]; then
    words+=" off validate on"
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}
complete -F _kdtreectl kdtreectl
