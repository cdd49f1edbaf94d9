# Write a settings file from the text of a program's --help. Each setting is commented out, with its
# help text and default.
#   bps-server --help | awk -v program=bps-server -f systemd/conf.awk
function emit(	range, def) {
	if (name == "" || name == "ready-fd" || name == "faults" || name == "config")
		return
	def = ""
	if (match(help, /\(default [^()]*\)$/)) {
		def = substr(help, RSTART + 9, RLENGTH - 10)
		help = substr(help, 1, RSTART - 2)
	}
	if (form != "TEXT")
		help = help " (" form ")"
	printf "\n# %s\n# %s =%s\n", help, name, def == "" ? "" : " " def
}
BEGIN {
	role = program
	sub(/^bps-/, "", role)
	key = role == "scheduler" ? "cluster" : role
	printf "# Settings of %s, see %s(8). Those that are commented out have their defaults. `%s\n", program, program, program
	printf "# --check-config` checks this file, and `%s --print-config` shows the values in force.\n", program
	printf "#\n# If /etc/bps/%s.key exists, the unit passes this key. It needs no setting.\n", key
}
# --help shows a setting that is yes or no without a value, so add the value here.
/^  --[a-z-]+(=|$)/ {
	emit()
	split(substr($1, 3) "=yes|no", part, "=")
	name = part[1]
	form = part[2]
	help = ""
	next
}
/^          / {
	sub(/^ +/, "")
	help = help == "" ? $0 : help " " $0
	next
}
/^  --/ {
	emit()
	name = ""
}
