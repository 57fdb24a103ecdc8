"""The words of the two domains, `tech` (machines and software) and `clinic` (a hospital).

The format is that of `lexicon.py`. `TERMS` are the words that exist in both domains and are
translated differently in each: a terminology list settles them.
"""

DOMAINS = ("tech", "clinic")

TERMS = """
Aufnahme f Aufnahmen e+ Aufnahme tech: recording ; clinic: admission
Station f Stationen o+ Stations tech: station ; clinic: ward/unit
Störung f Störungen a+/i+ Störungs tech: fault/malfunction ; clinic: disorder
Eingriff m Eingriffe e+ Eingriffs tech: intervention ; clinic: operation/procedure
Kanal m Kanäle d+ Kanal tech: channel ; clinic: duct
Anschluss m Anschlüsse d+ Anschluss tech: port/connector ; clinic: fitting
Platte f Platten d+ Platten tech: disk ; clinic: plate
Spannung f Spannungen a+ Spannungs tech: voltage ; clinic: tension
Netz n Netze d+ Netz tech: network/grid ; clinic: mesh
Schlauch m Schläuche d+ Schlauch tech: hose ; clinic: tube
Schiene f Schienen d+ Schienen tech: rail ; clinic: splint
Sonde f Sonden d+ Sonden tech: sensor ; clinic: probe
Bild n Bilder t+ Bild tech: image/picture ; clinic: scan
Lager n Lager d+ Lager tech: bearing ; clinic: storeroom
Mutter f Mütter d/p - tech: nut ; clinic: mother
Verband m Verbände d+ Verbands tech: association ; clinic: bandage/dressing
Bruch m Brüche a+/i+ Bruch tech: crack/breakage ; clinic: fracture
Becken n Becken d+ Becken tech: basin ; clinic: pelvis
Gelenk n Gelenke d+ Gelenk tech: hinge ; clinic: joint
Kammer f Kammern o+ Kammer tech: chamber ; clinic: ventricle
Ader f Adern d+ Ader tech: wire ; clinic: vein
Klappe f Klappen d+ Klappen tech: flap/hatch ; clinic: valve
Umschlag m Umschläge d+ - tech: envelope/cover ; clinic: compress
Überweisung f Überweisungen t+ Überweisungs tech: transfer ; clinic: referral
Prüfung f Prüfungen e+ Prüf tech: test/inspection ; clinic: examination
Einstellung f Einstellungen a+ Einstellungs tech: setting ; clinic: attitude
Anzeige f Anzeigen d+ Anzeige tech: display ; clinic: report
Welle f Wellen d+ Wellen tech: shaft ; clinic: wave
Ausfall m Ausfälle a+/i+ Ausfall tech: outage/failure ; clinic: deficit
Entlassung f Entlassungen e+ Entlassungs tech: layoff/dismissal ; clinic: discharge
Träger m Träger d+ Träger tech: beam ; clinic: carrier
Schale f Schalen d+ Schalen tech: shell/casing ; clinic: dish
Stift m Stifte d+ - tech: pin ; clinic: pen
Behandlung f Behandlungen e+ Behandlungs tech: processing step ; clinic: treatment/therapy
Befund m Befunde t+ Befund tech: finding ; clinic: test result
Akte f Akten t+ Akten tech: file ; clinic: chart/record
Versorgung f - a+ Versorgungs tech: supply ; clinic: care
Leitung f Leitungen d+ Leitungs tech: cable/line ; clinic: catheter
Blase f Blasen d+ Blasen tech: bubble ; clinic: bladder
Bett n Betten d+ Betten tech: base/bed ; clinic: bed
Kopf m Köpfe d+ Kopf tech: print head ; clinic: head
Muster n Muster d+ Muster tech: pattern ; clinic: sample/specimen
Zugang m Zugänge d+ Zugangs tech: access point ; clinic: line
Strahl m Strahlen d Strahlen tech: jet/beam ; clinic: ray
Brücke f Brücken d+ Brücken tech: jumper/bridge ; clinic: dental bridge
Kern m Kerne d+ Kern tech: core ; clinic: nucleus
Druck m - m Druck tech: pressure ; clinic: blood pressure
Auflage f Auflagen d+ - tech: support ; clinic: pad
"""

TECH_NOUNS = """
Techniker m Techniker p+ Techniker technician
Technikerin f Technikerinnen p+ - technician
Ingenieur m Ingenieure p+ Ingenieur engineer
Ingenieurin f Ingenieurinnen p+ - engineer
Programmierer m Programmierer p+ - programmer/developer
Entwicklerin f Entwicklerinnen p+ Entwickler developer
Monteur m Monteure p+ - fitter/mechanic
Nutzer m Nutzer p+ Nutzer user
Lieferant mw Lieferanten p Lieferanten supplier/vendor
Prüfer m Prüfer p+ - tester/inspector
Rechner m Rechner d+ Rechner computer/machine
Server m Server d+ Server server
Drucker m Drucker d+ Drucker printer
Bildschirm m Bildschirme d+ Bildschirm screen/monitor
Tastatur f Tastaturen d+ Tastatur keyboard
Kabel n Kabel d+ Kabel cable
Motor m Motoren d+ Motor engine/motor
Pumpe f Pumpen d+ Pumpen pump
Schraube f Schrauben d+ Schrauben screw/bolt
Maschine f Maschinen d+ Maschinen machine
Roboter m Roboter d+ Roboter robot
Getriebe n Getriebe d+ Getriebe gearbox/transmission
Schalter m Schalter d+ Schalter switch
Batterie f Batterien d+ Batterie battery
Filter m Filter d+ Filter filter
Kessel m Kessel d+ Kessel boiler
Turbine f Turbinen d+ Turbinen turbine
Antrieb m Antriebe d+ Antriebs drive
Steuerung f Steuerungen d+ Steuerungs controller/control unit
Speicher m Speicher d+ Speicher memory module/storage unit
Werkzeug n Werkzeuge d+ Werkzeug tool
Kamera f Kameras d+ Kamera camera
Gehäuse n Gehäuse d+ Gehäuse housing/case
Regler m Regler d+ Regler regulator/control
Gerät n Geräte d+ Geräte device/unit
Programm n Programme t+ Programm program
Datei f Dateien t+ Datei file
Datenbank f Datenbanken t+ Datenbank database
Passwort n Passwörter t+ Passwort password
Protokoll n Protokolle t+ Protokoll log/protocol
Zeichnung f Zeichnungen t+ Zeichnungs drawing
Handbuch n Handbücher t+ - handbook/manual
Meldung f Meldungen t+ Melde notification/alert
Code m Codes t+ Code code
Version f Versionen t+ Versions version/release
Werkstatt f Werkstätten o+ Werkstatt workshop
Fabrik f Fabriken o+ Fabrik factory/plant
Labor n Labore o+ Labor laboratory/lab
Baustelle f Baustellen o+ Baustellen construction site/building site
Rechenzentrum n Rechenzentren o+ - data centre
Wartung f Wartungen e+ Wartungs maintenance check/service
Montage f Montagen e+ Montage assembly
Reparatur f Reparaturen e+ Reparatur repair
Aktualisierung f Aktualisierungen e+ - update/upgrade
Messung f Messungen e+ Mess measurement
Vorführung f Vorführungen e+ - demonstration/demo
Absturz m Abstürze e+ - crash
Defekt m Defekte a+ - defect/fault
Strom m - m Strom power/electricity
Öl n - m Öl oil
Wasser n - m Wasser water
Daten n - m Daten data
Luft f - m Luft air
Energie f - m Energie energy
Sicherung f - m Sicherungs backup
Signal n - m Signal signal
Laser m - m Laser laser
Gas n - m Gas gas
Metall n - m Metall metal
Funk m - m Funk radio
"""

CLINIC_NOUNS = """
Arzt m Ärzte p+ Arzt doctor/physician
Ärztin f Ärztinnen p+ - doctor/physician
Patient mw Patienten p+ Patienten patient
Patientin f Patientinnen p+ - patient
Pfleger m Pfleger p+ - nurse/carer
Schwester f Schwestern p+ Schwestern nurse
Chirurg mw Chirurgen p+ Chirurgen surgeon
Chirurgin f Chirurginnen p+ - surgeon
Hebamme f Hebammen p Hebammen midwife
Apotheker m Apotheker p+ - pharmacist/chemist
Begleiterin f Begleiterinnen p - companion
Therapeut mw Therapeuten p+ Therapeuten therapist
Kind n Kinder p+ Kinder child
Zahnärztin f Zahnärztinnen p - dentist
Sanitäter m Sanitäter p+ Sanitäter paramedic
Medikament n Medikamente d+ Medikamenten drug/medicine
Tablette f Tabletten d+ Tabletten tablet/pill
Salbe f Salben d+ Salben ointment
Spritze f Spritzen d+ Spritzen syringe/injection
Nadel f Nadeln d+ Nadel needle
Maske f Masken d+ Masken mask
Thermometer n Thermometer d+ - thermometer
Rollstuhl m Rollstühle d+ Rollstuhl wheelchair
Trage f Tragen d+ - stretcher
Handschuh m Handschuhe d+ Handschuh glove
Prothese f Prothesen d+ Prothesen prosthesis/artificial limb
Krücke f Krücken d - crutch
Pflaster n Pflaster d+ Pflaster plaster/adhesive strip
Skalpell n Skalpelle d - scalpel
Brille f Brillen d+ Brillen pair of glasses
Rezept n Rezepte t+ Rezept prescription
Diagnose f Diagnosen t+ Diagnose diagnosis
Attest n Atteste t - medical certificate/certificate
Krankenschein m Krankenscheine t - sick note
Dosis f Dosen t+ Dosis dose
Probe f Proben d+ Proben sample/specimen
Einwilligung f Einwilligungen t - consent form
Klinik f Kliniken o+ Klinik clinic/hospital
Praxis f Praxen o+ Praxis practice/surgery
Ambulanz f Ambulanzen o+ Ambulanz outpatient department
Apotheke f Apotheken o+ Apotheken pharmacy/dispensary
Wartezimmer n Wartezimmer o - waiting room
Kreißsaal m Kreißsäle o - delivery room
Geburt f Geburten e+ Geburts birth/delivery
Impfung f Impfungen e+ Impf vaccination
Visite f Visiten e+ - ward round
Operation f Operationen e+ Operations operation/surgery
Narkose f Narkosen e+ Narkose anaesthetic
Beratung f Beratungen e+ Beratungs consultation
Messung f Messungen e+ - measurement/reading
Infektion f Infektionen i+ Infektions infection
Krankheit f Krankheiten i+ Krankheits disease/illness
Verletzung f Verletzungen i+ Verletzungs injury
Allergie f Allergien i+ Allergie allergy
Wunde f Wunden i+ Wund wound
Entzündung f Entzündungen i+ Entzündungs inflammation
Lähmung f Lähmungen i+ - paralysis
Blut n - m Blut blood
Herz n - m Herz heart
Lunge f - m Lungen lung
Niere f - m Nieren kidney
Leber f - m Leber liver
Magen m - m Magen stomach
Knie n - m Knie knee
Hüfte f - m Hüft hip
Haut f - m Haut skin
Zahn m - m Zahn tooth
Auge n - m Augen eye
Ohr n - m Ohren ear
Pflege f - m Pflege nursing
Fieber n - m Fieber fever
Schmerz m - m Schmerz pain
Hand f - m Hand hand
Fuß m - m Fuß foot
"""

TECH_VERBS = """
auf|nehmen nimmt nahm genommen | p | a:t | record
ein|stellen | p | a:d | adjust/set
an|legen | p | a:t | create/set~up
behandeln | p | a:ta | handle/process
untersuchen | p | a:dta | investigate/analyse
überweisen überweist überwies überwiesen | p | a:t | transfer
betreuen | p | a:po | support
ab|nehmen nimmt nahm genommen | p | a:d | remove/detach
ein|setzen | p | a:d | deploy/use
entlassen entlässt entließ entlassen | p | a:p | dismiss/lay~off
reparieren | p | a:d | repair/fix
aus|schalten | p | a:d | switch~off/turn~off
ein|schalten | p | a:d | switch~on/turn~on
aus|tauschen | p | a:d | replace/exchange
ein|bauen | p | a:d | install/fit
aus|bauen | p | a:d | remove/take~out
zusammen|bauen | p | a:d | assemble/put~together
an|schließen schließt schloss geschlossen | p | a:d | connect/attach
herunter|laden lädt lud geladen | p | a:t | download
hoch|laden lädt lud geladen | p | a:t | upload
speichern | p | a:t | save/store
löschen | p | a:t | delete/erase
installieren | p | a:td | install
programmieren | p | a:d | program
messen misst maß gemessen | p | a:da | measure
warten | p | a:d | service/maintain
steuern | dp | a:d | control
ersetzen ersetzt ersetzte ersetzt | dp | a:dt | replace
blockieren | d | a:d | block/jam
ab|stürzen * | dt | | crash
aus|fallen fällt fiel gefallen * | d | | fail/break down
laufen läuft lief gelaufen * | dt | | run
an|springen springt sprang gesprungen * | d | | start
überhitzen | d | | overheat
funktionieren | dt | | work/function
"""

CLINIC_VERBS = """
auf|nehmen nimmt nahm genommen | p | a:p | admit/take~in
ein|stellen | p | a:p | hire/employ
an|legen | p | a:d | put~on/apply
behandeln | p | a:pi | treat
untersuchen | p | a:pi | examine
überweisen überweist überwies überwiesen | p | a:p | refer
betreuen | p | a:po | look after!/care for!
ab|nehmen nimmt nahm genommen | p | a:d | take~off
ein|setzen | p | a:d | insert
entlassen entlässt entließ entlassen | p | a:p | discharge
operieren | p | a:p | operate on
impfen | p | a:p | vaccinate/immunise
pflegen | p | a:p | nurse/care for!
heilen | p | a:pi | cure/heal
verbinden verbindet verband verbunden | p | a:pi | bandage/dress
röntgen röntgt röntgte geröntgt | p | a:p | X-ray
verschreiben verschreibt verschrieb verschrieben | p | d:p a:d | prescribe>for
ein|nehmen nimmt nahm genommen | p | a:d | take
ein|reiben reibt rieb gerieben | p | a:p | rub~down
desinfizieren | p | a:do | disinfect
beruhigen | p | a:p | calm~down/reassure
wecken | p | a:p | wake~up/wake
besuchen | p | a:po | visit
beobachten | p | a:pi | observe/monitor
diagnostizieren | p | a:i | diagnose
spenden | p | a:d | donate
husten | p | | cough
leiden leidet litt gelitten | p | an+d:i | suffer from
sterben stirbt starb gestorben * | p | an+d:i | die of
sich:erholen | p | von+d:ei | recover from
genesen genest genas genesen * | p | | recover
wirken | d | | take effect/work
atmen | p | | breathe
aus|ruhen | p | | rest
"""

# `German | kinds | English`
TECH_ADJECTIVES = """
digital | dt | digital
elektrisch | d | electric/electrical
automatisch | de | automatic
drahtlos | d | wireless
hydraulisch | d | hydraulic
beschädigt | dt | damaged/corrupted
verschlüsselt | t | encrypted
veraltet | dt | outdated/obsolete
technisch | tea | technical
fehlerhaft | dt | faulty/flawed
undicht | d | leaking/leaky
robust | d | rugged/robust
"""
CLINIC_ADJECTIVES = """
krank | p | sick/ill
gesund | p | healthy/well
verletzt | p | injured/hurt
schwanger | p | pregnant
blass | p | pale
steril | do | sterile
chronisch | i | chronic
akut | i | acute
ärztlich | te | medical
schmerzhaft | ei | painful
ansteckend | i | contagious/infectious
ambulant | e | outpatient
"""
