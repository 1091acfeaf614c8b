{{- define "shoal.labels" -}}
app.kubernetes.io/name: shoal
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The name of an object, of at most 63 characters: call with (list $ "server"). */}}
{{- define "shoal.name" -}}
{{- printf "%s-%s" ((index . 0).Release.Name | trunc 30 | trimSuffix "-") (index . 1) -}}
{{- end }}

{{/* What all pods have in common: call with $. */}}
{{- define "shoal.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: 30
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: { type: RuntimeDefault }
{{- with .Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- end }}

{{/* What all containers have in common. */}}
{{- define "shoal.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end }}

{{/* Settings of the log, as environment variables. */}}
{{- define "shoal.log" -}}
{{- with .Values.log.address }}
- { name: SHOAL_LOG_ADDRESS, value: {{ . | quote }} }
{{- end }}
{{- with .Values.log.replication }}
- { name: SHOAL_LOG_REPLICATION, value: {{ . | quote }} }
{{- end }}
{{- if .Values.log.user }}
- { name: SHOAL_LOG_TLS, value: {{ .Values.log.tls | quote }} }
- { name: SHOAL_LOG_SASL, value: {{ .Values.log.sasl | quote }} }
- { name: SHOAL_LOG_USER, value: {{ .Values.log.user | quote }} }
- { name: SHOAL_LOG_SECRET_FILE, value: /run/secrets/kafka/password }
{{- with .Values.log.oauthUrl }}
- { name: SHOAL_LOG_OAUTH_URL, value: {{ . | quote }} }
{{- end }}
{{- with .Values.log.oauthScope }}
- { name: SHOAL_LOG_OAUTH_SCOPE, value: {{ . | quote }} }
{{- end }}
{{- end }}
{{- if .Values.log.caSecret }}
- { name: SHOAL_LOG_CA_FILE, value: /run/secrets/kafka-ca/ca.crt }
{{- end }}
{{- end }}

{{- define "shoal.mounts" -}}
- { name: federation, mountPath: /etc/shoal, readOnly: true }
- { name: temporary, mountPath: /tmp }
- { name: data, mountPath: /var/lib/shoal }
{{- if .Values.log.user }}
- { name: kafka-password, mountPath: /run/secrets/kafka, readOnly: true }
{{- end }}
{{- if .Values.log.caSecret }}
- { name: kafka-ca, mountPath: /run/secrets/kafka-ca, readOnly: true }
{{- end }}
{{- end }}

{{- define "shoal.volumes" -}}
- name: federation
  configMap: { name: {{ include "shoal.name" (list . "federation") }} }
- name: temporary
  emptyDir: { sizeLimit: 256Mi }
{{- if .Values.log.user }}
- name: kafka-password
  secret: { secretName: {{ required "log.user needs log.passwordSecret" .Values.log.passwordSecret }}, defaultMode: 0400 }
{{- end }}
{{- if .Values.log.caSecret }}
- name: kafka-ca
  secret: { secretName: {{ .Values.log.caSecret }} }
{{- end }}
{{- end }}

{{/* The claim of a StatefulSet: call with (list storage storageClass). It stays when the release is removed. */}}
{{- define "shoal.claim" -}}
- metadata: { name: data }
  spec:
    accessModes: [ReadWriteOnce]
    {{- with index . 1 }}
    storageClassName: {{ . }}
    {{- end }}
    resources: { requests: { storage: {{ index . 0 }} } }
{{- end }}

{{/* Probes of a process with HTTP: call with (list port path). */}}
{{- define "shoal.probes" -}}
startupProbe:
  exec: { command: [python, -IS, /opt/shoal/health_check.py, {{ index . 0 | quote }}, /livez] }
  periodSeconds: 5
  timeoutSeconds: 10
  failureThreshold: 60
livenessProbe:
  exec: { command: [python, -IS, /opt/shoal/health_check.py, {{ index . 0 | quote }}, /livez] }
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 3
readinessProbe:
  exec: { command: [python, -IS, /opt/shoal/health_check.py, {{ index . 0 | quote }}, {{ index . 1 }}] }
  periodSeconds: 10
  timeoutSeconds: 10
{{- end }}
