#!/bin/sh
# Starts a run with curl alone and waits for its end: what an internal form has to send.
#
#   KF_PIPELINES_ENDPOINT=http://localhost:8080 \
#       sh examples/submit_with_curl.sh PIPELINE_ID VERSION_ID parameters.json [RUN_NAME]
#
# PIPELINE_ID and VERSION_ID are those of the uploaded tfjob_training.yaml; the UI shows both.
# parameters.json is an object with run parameters, for example
#   {"data_uri": "s3://data/digits.csv", "data_label": "digit", "model_name": "digits",
#    "output_uri": "s3://results/team-a", "train_epochs": 20}
# A parameter that it omits has the pipeline's default. Preflight checks all of them.
#
# Environment: TOKEN is sent as a bearer token; EXPERIMENT_ID chooses the experiment, which on a
# back end with users decides the namespace; SECONDS_BETWEEN looks is 10.
# Exit codes: 0 the run succeeded, 1 it did not, 2 the back end rejected the request.
set -eu

api="${KF_PIPELINES_ENDPOINT:?set it to the address of Kubeflow Pipelines}/apis/v2beta1"
pipeline=$1 version=$2 parameters=$3 name=${4:-run-$(date -u +%Y%m%d-%H%M%S)} # letters, digits, . _ -

call() { # METHOD PATH [BODY]: leaves the answer in $answer; not for $(...), which exits alone
    answer=$(curl --silent --show-error --request "$1" --header "Content-Type: application/json" \
        ${TOKEN:+--header "Authorization: Bearer $TOKEN"} \
        ${3:+--data "$3"} --write-out '\n%{http_code}' "$api$2") || exit 2
    code=$(printf '%s\n' "$answer" | tail -n 1)
    answer=$(printf '%s\n' "$answer" | sed '$d')
    if [ "$code" -ge 400 ]; then
        printf 'refused (%s): %s\n' "$code" "$answer" >&2
        exit 2
    fi
}

first() { # FIELD: prints the first value of a text field of $answer
    printf '%s\n' "$answer" | grep -o "\"$1\": *\"[^\"]*\"" | cut -d '"' -f 4 | head -n 1
}

# The same name again would start a second run, so look for it first, with the filter
# {"predicates": [{"operation": "EQUALS", "key": "name", "stringValue": NAME}]} as a URL has it.
filter="%7B%22predicates%22%3A%5B%7B%22operation%22%3A%22EQUALS%22%2C%22key%22%3A%22name%22%2C"
filter="$filter%22stringValue%22%3A%22$name%22%7D%5D%7D"
call GET "/runs?page_size=1&filter=$filter"
run=$(first run_id)
if [ -n "$run" ]; then
    echo "there is a run named $name: $run"
else
    call POST /runs "{
        \"display_name\": \"$name\",
        ${EXPERIMENT_ID:+\"experiment_id\": \"$EXPERIMENT_ID\",}
        \"pipeline_version_reference\": {
            \"pipeline_id\": \"$pipeline\", \"pipeline_version_id\": \"$version\"
        },
        \"runtime_config\": {\"parameters\": $(cat "$parameters")}
    }"
    run=$(first run_id)
    echo "started $name: $run"
fi

# To end it:      POST /runs/$run:terminate
# To try again:   POST /runs/$run:retry, which keeps the run id and resumes training
while :; do
    call GET "/runs/$run"
    state=$(first state)
    echo "$state"
    case $state in
        SUCCEEDED) exit 0 ;;
        FAILED | CANCELED | SKIPPED) exit 1 ;;
    esac
    sleep "${SECONDS_BETWEEN:-10}"
done
